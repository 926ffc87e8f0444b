"""Tunes the encoder for retrieval and detection at once: the paper's multi-task loss, reaching the encoder (losses.py).

A plain loop over torch and sentence-transformers. All randomness comes from (seed, epoch), so that a killed run resumes
at its last checkpoint and ends with the same weights.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from retrievers.dense.encoder import check_device
from retrievers.dense.model_loading import load_model
from retrievers.dense.tuning.dev_recall import choose_blend
from retrievers.kind import Context
from retrievers.masstool.encoder.losses import JointLoss
from retrievers.masstool.encoder.tokens import encode
from retrievers.masstool.settings import EncoderTuning
from retrievers.masstool.training import checkpoints
from retrievers.masstool.training.checkpoints import copy_state
from retrievers.masstool.training.tensors import DevMetrics
from retrievers.progress import Progress
from retrievers.settings import WARMUP, WEIGHT_DECAY
from retrievers.training_set import TrainingSet

CHECKPOINT_SECONDS = 30.0
"""Seconds between checkpoints: writing a large encoder takes as long as an epoch."""


class JointTrainer:
    """The encoder, its losses and its optimizer."""

    def __init__(
        self,
        base: Path,
        data: TrainingSet,
        tuning: EncoderTuning,
        detection_weight: float,
        seed: int,
        context: Context,
    ) -> None:
        self.data, self.tuning, self.seed, self.device = data, tuning, seed, check_device(context.device)
        self.cuda = self.device.startswith("cuda")
        self.model: Any = load_model(base, self.device, dtype=torch.float32)
        if tuning.max_length:
            self.model.max_seq_length = tuning.max_length
        self.original = copy_state(self.model)
        self.loss = JointLoss(self.model, data, tuning, detection_weight, seed, self.device)
        self.metrics = DevMetrics(context.measure, data.dev.gold)
        self._parameters = [*self.model.parameters(), *self.loss.parameters()]
        matrices = [value for value in self._parameters if value.ndim >= 2]
        others = [value for value in self._parameters if value.ndim < 2]
        groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=tuning.learning_rate, fused=self.cuda)
        self.steps = -(-len(data.train) // tuning.batch_size)
        self.mean = copy_state(self.model) if tuning.auxiliary.ema_decay else {}
        """Running mean of the weights; empty: none is kept."""
        weights = self.model.state_dict()
        self._live = {name: value.detach() for name, value in weights.items() if value.is_floating_point()}

    def epoch(self, number: int, bar: Progress) -> float:
        """Run one pass over the training queries; return the mean loss."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        order = torch.randperm(len(self.data.train), generator=generator)
        self.model.train()
        total = torch.zeros((), device=self.device)
        with torch.random.fork_rng(devices=[self.device] if self.cuda else []):
            torch.manual_seed(self.seed * 1_000_003 + number)
            for step, batch in enumerate(torch.split(order, self.tuning.batch_size), number * self.steps):
                self._set_learning_rate(step)
                loss = self.loss(batch, generator)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(self._parameters, 1.0)
                self.optimizer.step()
                self._update_mean(step)
                total += loss.detach() * len(batch)
                bar.add()
        self.model.eval()
        return float(total) / len(order)

    def _set_learning_rate(self, step: int) -> None:
        total = self.steps * self.tuning.epochs
        warmup = max(1, int(WARMUP * total))
        share = (step + 1) / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))
        for group in self.optimizer.param_groups:
            group["lr"] = self.tuning.learning_rate * share

    @torch.no_grad()
    def _update_mean(self, step: int) -> None:
        """Move the mean towards the weights, faster in the first steps, which are far from the last ones."""
        if self.mean:
            decay = min(self.tuning.auxiliary.ema_decay, (1 + step) / (10 + step))
            torch._foreach_lerp_([self.mean[name] for name in self._live], list(self._live.values()), 1 - decay)

    @torch.no_grad()
    def dev_metrics(self, model: Any, with_votes: bool = True) -> dict[str, float]:
        """Dev metrics of the text alone and, where votes are tuned, the mean of them with votes.

        The voters' vectors are this model's, not those that training keeps from many steps.
        """
        documents, queries = (encode(model, texts, self.cuda) for texts in (self.loss.documents, self.loss.dev))
        scores = queries @ documents.T
        metrics = self.metrics(scores)
        if not (with_votes and self.loss.votes):
            return metrics
        votes = self.loss.votes.votes(queries, encode(model, self.loss.queries, self.cuda))
        both = torch.softmax(scores / self.tuning.temperature, dim=-1) + votes
        return {**metrics, "with_votes": self.metrics(both)["mean"]}

    def mean_dev_metrics(self) -> dict[str, float]:
        """Dev metrics of the averaged weights; empty where there are none."""
        if not self.mean:
            return {}
        current = copy_state(self.model)
        self.model.load_state_dict(self.mean)
        metrics = self.dev_metrics(self.model)
        self.model.load_state_dict(current)
        return metrics

    def blend(self, best: Mapping[str, Tensor]) -> dict[str, Any]:
        """Leave the best blend of original and tuned weights in the model, and describe it.

        By the text alone, as in a dense index: no query votes for a tool that no training query needed.
        """
        self.model.load_state_dict(best)
        by_text = partial(self.dev_metrics, with_votes=False)
        kept, scores = choose_blend(self.model, self.original, by_text, self.tuning.blends)
        return {"after": self.dev_metrics(self.model), "blend": kept, "blends": scores}

    def save(self, path: Path, best: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write a checkpoint."""
        parts = {
            "now": self.model.state_dict(),
            "best": best,
            "mean": self.mean,
            "adam": checkpoints.optimizer_tensors(self.optimizer),
            "loss": self.loss.state(),
        }
        checkpoints.save_checkpoint(path, parts, state)

    def load(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore a checkpoint."""
        self.model.load_state_dict(parts["now"])
        self.mean = {name: value.to(self.device) for name, value in parts["mean"].items()}
        checkpoints.load_optimizer(self.optimizer, parts["adam"])
        self.loss.load_state(parts["loss"])


def tune_jointly(
    base: Path,
    data: TrainingSet,
    tuning: EncoderTuning,
    detection_weight: float,
    seed: int,
    work: Path,
    context: Context,
) -> Path:
    """Train in `work`, or resume a killed run there; return the folder of the tuned encoder."""
    work.mkdir(parents=True, exist_ok=True)
    finished, path = work / "encoder", work / "joint.safetensors"
    if finished.is_dir():
        return finished
    trainer = JointTrainer(base, data, tuning, detection_weight, seed, context)
    state: dict[str, Any] = {"epoch": 0, "best": -1.0, "best_epoch": 0, "history": []}
    before, best = trainer.dev_metrics(trainer.model), copy_state(trainer.model)
    if stored := checkpoints.load_checkpoint(path):
        parts, state = stored
        best = parts["best"]
        trainer.load(parts)
    total, done = tuning.epochs * trainer.steps, state["epoch"] * trainer.steps
    bar = Progress("training the encoder", total, "steps", context.show_progress, done)
    saved_at = -CHECKPOINT_SECONDS
    for number in range(state["epoch"], tuning.epochs):
        if number - state["best_epoch"] >= tuning.patience:
            break
        started = time.perf_counter()
        row = {"epoch": number + 1, "loss": trainer.epoch(number, bar)}
        last, averaged = trainer.dev_metrics(trainer.model), trainer.mean_dev_metrics()
        row |= {"seconds": time.perf_counter() - started, **last}
        row |= {f"averaged {name}": value for name, value in averaged.items()}
        state["epoch"] = number + 1
        state["history"].append(row)
        for name, metrics in (("last", last), ("averaged", averaged)):
            if metrics and (score := metrics.get("with_votes", metrics["mean"])) > state["best"]:
                state |= {"best": score, "best_epoch": number + 1, "weights": name}
                weights = trainer.mean if name == "averaged" else trainer.model.state_dict()
                best = {key: value.detach().clone() for key, value in weights.items()}
        if time.perf_counter() - saved_at >= CHECKPOINT_SECONDS:
            trainer.save(path, best, state)
            saved_at = time.perf_counter()
    bar.close()
    settings = {"settings": asdict(tuning), "detection_weight": detection_weight}
    facts = {"before": before, **trainer.blend(best), **state, **settings}
    part = work / "encoder.part"
    shutil.rmtree(part, ignore_errors=True)
    trainer.model.save_pretrained(str(part), create_model_card=False)
    (part / "training.json").write_text(json.dumps(facts, indent=1))
    part.rename(finished)
    path.unlink(missing_ok=True)
    return finished
