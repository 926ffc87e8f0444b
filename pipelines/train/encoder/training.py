"""One training of an encoder: on some of the sets, in a folder of its own, resumed after a kill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pipelines.train.encoder.sets import EncoderSet
from pipelines.train.encoder.settings import EncoderConfig
from retrievers.dense.adapter import weights_hash
from retrievers.dense.encoder import check_device
from retrievers.dense.model_loading import load_model
from retrievers.dense.tuning.dev_recall import load_blend
from retrievers.dense.tuning.general import CHECKPOINT, train_mixture
from retrievers.dense.tuning.mixture import Mixture
from retrievers.kind import Context
from retrievers.out_of_memory import report_out_of_memory
from retrievers.progress import say
from retrievers.work_folder import WorkStage, reuse_work

TUNED = "tuned"
FILES = (TUNED, "tuned.part", CHECKPOINT, "*.part", "losses.json", "metrics.json", "scores.npz", "report.html")


class TunedEncoder:
    """A model with its original and its tuned weights, and every blend of them."""

    def __init__(self, model: Any, original: dict[str, torch.Tensor], tuned: dict[str, torch.Tensor]) -> None:
        self.model, self._original, self._tuned = model, original, tuned

    def blend(self, share: float) -> Any:
        """The model with `share` of the tuned weights."""
        load_blend(self.model, self._original, self._tuned, share)
        return self.model


def load_encoder(folder: Path, device: str | None) -> Any:
    """A sentence-transformers model in single precision."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with report_out_of_memory(folder):
        return load_model(folder, check_device(device), dtype=torch.float32)


def tune_encoder(
    base: Path, sets: Sequence[EncoderSet], config: EncoderConfig, work: Path, context: Context
) -> TunedEncoder:
    """Train on the sets in `work`, unless that is done."""
    inputs = [weights_hash(base), config.training, config.seed, [asdict(data.training) for data in sets]]
    reuse_work(work, [WorkStage("encoder", inputs, FILES)], ("config.yaml", "environment.json"))
    model = load_encoder(base, context.device)
    original = {name: value.detach().clone() for name, value in model.state_dict().items()}
    if (work / TUNED).exists():
        tuned = load_encoder(work / TUNED, context.device).state_dict()
        return TunedEncoder(model, original, dict(tuned))
    say(f"{work}: {len(sets)} sets, {sum(len(data.training.train) for data in sets):,} queries", context.show_progress)
    device = check_device(context.device)
    with _read_at_most(model, config.training.max_length):
        say("tokenizing and mining hard negatives", context.show_progress)
        mixture = Mixture(model, [data.training for data in sets], config.training, config.seed, device)
        losses = train_mixture(model, mixture, config.training, config.seed, work, context.show_progress)
    part = work / "tuned.part"
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(str(part), create_model_card=False)
    (work / "losses.json").write_text(json.dumps(losses))
    part.rename(work / TUNED)
    (work / CHECKPOINT).unlink(missing_ok=True)
    tuned = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return TunedEncoder(model, original, tuned)


@contextmanager
def _read_at_most(model: Any, tokens: int) -> Iterator[None]:
    """Cut texts at `tokens` in training; the finished encoder reads as much as its base."""
    limit = getattr(model, "max_seq_length", None)
    if not tokens or limit is None:
        yield
        return
    model.max_seq_length = min(tokens, limit)
    try:
        yield
    finally:
        model.max_seq_length = limit
