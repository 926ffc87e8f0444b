"""Runs the epochs of a head training: checkpoints, selection on dev, early stop, resume after kill -9."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retrievers.kind import Context
from retrievers.masstool.faithful import trainer_class
from retrievers.masstool.model import Heads
from retrievers.masstool.settings import MassToolSettings
from retrievers.masstool.training import checkpoints
from retrievers.masstool.training.checkpoints import Tensors, copy_state
from retrievers.masstool.training.detection_threshold import choose_threshold
from retrievers.masstool.training.tensors import TrainingTensors
from retrievers.masstool.training.threads import training_threads
from retrievers.masstool.training.trainer import HeadTrainer
from retrievers.progress import Progress

CHECKPOINT = "heads.safetensors"


def train_heads(
    tensors: TrainingTensors, settings: MassToolSettings, work: Path | None, context: Context
) -> tuple[Heads, dict[str, Any]]:
    """Train, or resume a killed run; return the heads that are best on dev, and how they came about.

    Without a `work` folder there are no checkpoints.
    """
    trainer = trainer_class(settings)(tensors, settings, context)
    with training_threads(trainer.device, trainer.step_size()):
        return _train(trainer, tensors, work / CHECKPOINT if work else None, context)


def _train(
    trainer: HeadTrainer, tensors: TrainingTensors, path: Path | None, context: Context
) -> tuple[Heads, dict[str, Any]]:
    heads, settings = trainer.heads, trainer.settings
    state: dict[str, Any] = {"epoch": 0, "best": -1.0, "best_epoch": 0, "history": [], "seconds": 0.0}
    warmup_steps = trainer.warm_up()
    start = best = copy_state(heads)
    if path and (stored := checkpoints.load_checkpoint(path)):
        parts, state = stored
        best = parts["best"]
        heads.load_state_dict(parts["now"])
        checkpoints.load_optimizer(trainer.optimizer, parts["adam"])
    best = _run_epochs(trainer, state, best, path, context.show_progress)
    heads.load_state_dict(best)
    plain = trainer.metrics(trainer.tensors.dev @ trainer.tensors.tools.T)
    before = trainer.dev()
    chosen = trainer.choose({"trained": best, "untrained": start})
    after, labels, fixed = trainer.dev(), trainer.tensors.dev_labels, trainer.train.detection_threshold
    return heads, {
        "plain": plain,
        "before": before,
        "after": after,
        **chosen,
        "detection": choose_threshold(heads, tensors.labels, labels, fixed) if trainer.detects else None,
        "warm_up": warmup_steps,
        "epochs": state["epoch"],
        "best_epoch": state["best_epoch"],
        "seconds": state["seconds"],
        "history": state["history"],
        "settings": asdict(settings),
    }


def _run_epochs(
    trainer: HeadTrainer, state: dict[str, Any], best: Tensors, path: Path | None, progress: bool
) -> Tensors:
    """Run the remaining epochs, noted in `state`; return the best weights."""
    train, heads = trainer.train, trainer.heads
    bar = Progress("training MassTool", train.epochs, "epochs", progress, state["epoch"])
    for number in range(state["epoch"], train.epochs):
        if number - state["best_epoch"] >= train.patience:
            break
        started = time.perf_counter()
        loss = trainer.epoch(number)
        seconds = time.perf_counter() - started
        dev = trainer.dev()
        state["seconds"] += time.perf_counter() - started
        state["epoch"] = number + 1
        state["history"].append({"epoch": number + 1, "loss": loss, "seconds": seconds, **dev})
        if dev["mean"] > state["best"]:
            state["best"], state["best_epoch"], best = dev["mean"], number + 1, copy_state(heads)
        if path:
            adam = checkpoints.optimizer_tensors(trainer.optimizer)
            checkpoints.save_checkpoint(path, {"now": heads.state_dict(), "adam": adam, "best": best}, state)
        bar.add(1, f"loss {loss:.3f}, dev recall@5 {dev['recall@5']:.4f}, best epoch {state['best_epoch']}")
    bar.close()
    return best
