"""The training loop of one stage: checkpoints in plain files, exact resume after kill -9.

The order of an epoch depends on seed and epoch alone, the learning rate on the step alone, and there is no dropout. A
checkpoint is therefore the weights, the optimizer's two moments and the step.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from retrievers.errors import BadInput
from retrievers.files import disk_room
from retrievers.generative.settings import GenerativeTraining, Stage
from retrievers.generative.training.examples import TokenExample, epoch_batches
from retrievers.generative.training.loss import batch_loss
from retrievers.progress import Progress

STATE = "state.json"
WARMUP = 0.03
"""Share of the steps in which the learning rate rises."""
WEIGHT_DECAY = 0.01
MAX_GRAD_NORM = 1.0
LOSS_EVERY = 20
"""Steps between two readings of the loss: a reading waits for the GPU."""
CHECKPOINT_SECONDS = 60.0
"""Minimum age of the last checkpoint at the end of an epoch: small catalogues train faster than a checkpoint writes."""


@dataclass(slots=True)
class StageProgress:
    """The part of a stage's state that is not a tensor."""

    step: int = 0
    tokens: int = 0
    loss: float = 0.0
    """The mean over the steps of the current epoch."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One entry per epoch."""
    best: float = -1.0
    last_is_best: bool = False
    """True where the epoch evaluated last is the best one."""
    waited: int = 0
    """Evaluations since the best one."""


@dataclass(frozen=True, slots=True)
class StageRun:
    """One stage to train."""

    name: str
    examples: Sequence[TokenExample]
    stage: Stage
    training: GenerativeTraining
    work: Path
    device: str
    show_progress: bool
    evaluate: Callable[[], float] | None = None
    """Dev recall@5; where it is given, the best epoch's weights are kept and patience counts."""


class StageTrainer:
    """Trains the weights for one stage."""

    def __init__(self, model: Any, weights: dict[str, Tensor], run: StageRun) -> None:
        self._model, self._weights, self._run = model, weights, run
        self._epoch_steps = math.ceil(len(run.examples) / run.stage.batch_size)
        self._total = self._epoch_steps * run.stage.epochs
        self._state, self._losses, self._saved_at = StageProgress(), list[Tensor](), time.monotonic()
        # No decay of embeddings, under any name: rows of tokens in no example must not change.
        tables = [module.weight for module in (model.get_input_embeddings(), model.get_output_embeddings())]
        plain = [
            value
            for name, value in weights.items()
            if value.ndim < 2 or "embed" in name or any(value is table for table in tables)
        ]
        decayed = [value for value in weights.values() if not any(value is other for other in plain)]
        groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}]
        self._fused = run.device.startswith("cuda")
        self._optimizer = torch.optim.AdamW(groups, lr=run.stage.learning_rate, fused=self._fused or None)

    def train(self) -> dict[str, Any]:
        """Train to the end and return the stage's summary."""
        run, state = self._run, self._resume()
        bar = Progress(f"training, {run.name}", self._total, "steps", run.show_progress, state.step)
        while state.step < self._total and state.waited < run.training.patience:
            epoch, skip = divmod(state.step, self._epoch_steps)
            batches = epoch_batches(run.examples, run.stage.batch_size, run.training.seed, epoch)
            for index, batch in enumerate(batches):
                if index < skip:
                    continue
                self._step(batch)
                if len(self._losses) == LOSS_EVERY:
                    self._read_losses()
                bar.add(1, f"loss {state.loss:.3f}")
                if state.step % run.training.save_every == 0 and state.step % self._epoch_steps:
                    self._save()
            self._read_losses()
            self._finish_epoch(epoch + 1)
            due = time.monotonic() > self._saved_at + CHECKPOINT_SECONDS
            if due or state.step % run.training.save_every == 0:
                self._save()
        bar.close()
        if run.evaluate is not None and not state.last_is_best and (run.work / "best").exists():
            load_weights(self._weights, run.work / "best" / "weights.safetensors", run.device)
        return {"steps": state.step, "tokens": state.tokens, "examples": len(run.examples), "history": state.history}

    def _step(self, batch: Sequence[TokenExample]) -> None:
        run, state = self._run, self._state
        state.step += 1
        for group in self._optimizer.param_groups:
            group["lr"] = run.stage.learning_rate * _schedule(state.step, self._total)
        loss, tokens = batch_loss(self._model, batch, run.device)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(self._weights.values()), MAX_GRAD_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._losses.append(loss.detach())
        state.tokens += tokens

    def _read_losses(self) -> None:
        state = self._state
        values = torch.stack(self._losses).tolist() if self._losses else []
        self._losses.clear()
        for step, value in enumerate(values, state.step - len(values) + 1):
            if not math.isfinite(value):
                raise BadInput(f"the loss of {self._run.name} is {value} at step {step}; lower learning_rate")
            state.loss += (value - state.loss) / ((step - 1) % self._epoch_steps + 1)

    def _finish_epoch(self, epoch: int) -> None:
        run, state = self._run, self._state
        row = {"epoch": float(epoch), "loss": state.loss}
        last = state.step >= self._total
        if run.evaluate is not None and (last or epoch % run.training.eval_every == 0):
            self._model.eval()
            row["recall@5"] = recall = run.evaluate()
            self._model.train()
            state.waited = 0 if recall > state.best else state.waited + 1
            state.last_is_best = recall >= state.best  # of equal epochs the later one
            if state.last_is_best:
                state.best = recall
                # The last epoch's weights are in memory. After a kill, the epoch done again may end a little worse.
                if not last:
                    save_tensors(run.work / "best", {"weights": self._weights})
        state.history.append(row)
        values = ", ".join(f"{name} {value:.3f}" for name, value in row.items() if name != "epoch")
        tqdm.write(f"{run.name}: epoch {epoch} of {run.stage.epochs}, {values}", file=sys.stderr)

    def _save(self) -> None:
        """Write a checkpoint, whole or not at all, then remove the one before."""
        self._read_losses()
        moments = {}
        for name, weight in self._weights.items():
            for moment in ("exp_avg", "exp_avg_sq") if self._optimizer.state[weight] else ():  # unused: no moments
                moments[f"{name}/{moment}"] = self._optimizer.state[weight][moment]
        target = self._run.work / f"step-{self._state.step}"
        save_tensors(target, {"weights": self._weights, "moments": moments}, asdict(self._state))
        for old in self._run.work.glob("step-*"):
            if old != target:
                shutil.rmtree(old, ignore_errors=True)
        self._saved_at = time.monotonic()

    def _resume(self) -> StageProgress:
        """Load the last checkpoint, where there is one."""
        checkpoints = sorted(self._run.work.glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
        if not checkpoints:
            return self._state
        folder, device = checkpoints[-1], self._run.device
        load_weights(self._weights, folder / "weights.safetensors", device)
        moments = load_file(folder / "moments.safetensors", device=device)
        self._state = StageProgress(**json.loads((folder / STATE).read_text()))
        for name, weight in self._weights.items():
            if f"{name}/exp_avg" in moments:
                self._optimizer.state[weight] = {
                    "step": torch.tensor(float(self._state.step), device=device if self._fused else "cpu"),
                    "exp_avg": moments[f"{name}/exp_avg"],
                    "exp_avg_sq": moments[f"{name}/exp_avg_sq"],
                }
        return self._state


def save_tensors(target: Path, files: dict[str, dict[str, Tensor]], facts: dict[str, Any] | None = None) -> None:
    """Write a folder of tensors, whole or not at all."""
    part = target.with_name(f".part-{target.name}")
    shutil.rmtree(part, ignore_errors=True)
    with disk_room(target.parent):
        part.mkdir(parents=True)
        for name, tensors in files.items():
            detached = {key: value.detach().contiguous() for key, value in tensors.items()}
            save_file(detached, part / f"{name}.safetensors")
        (part / STATE).write_text(json.dumps(facts or {}))
        shutil.rmtree(target, ignore_errors=True)
        os.replace(part, target)


def load_weights(weights: dict[str, Tensor], path: Path, device: str) -> None:
    """Copy saved values into the weights."""
    with torch.no_grad():
        for name, value in load_file(path, device=device).items():
            weights[name].copy_(value)


def _schedule(step: int, total: int) -> float:
    """Factor on the learning rate: a linear warmup, then a cosine."""
    rise = max(1, math.ceil(WARMUP * total))
    if step <= rise:
        return step / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, total - rise)))
