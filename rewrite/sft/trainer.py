"""TRL's trainer of supervised fine-tuning, whose dev is judged by retrieval too."""

from __future__ import annotations

from typing import Any

import torch
from trl.trainer.sft_trainer import SFTTrainer

from rewrite.sft.dev_eval_trainer import Judged, must_be_number


class RewriterTrainer(Judged, SFTTrainer):
    """Trains as TRL does."""

    def evaluation_loop(self, *arguments: Any, **settings: Any) -> Any:
        """The library's loop, which gives the loss, and ours. Training goes on with the random numbers it had."""
        device = self.args.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            output: Any = super().evaluation_loop(*arguments, **settings)
        must_be_number(float(output.metrics["eval_loss"]), "loss on dev", self.state.global_step)
        output.metrics.update(self.judgement())
        return output
