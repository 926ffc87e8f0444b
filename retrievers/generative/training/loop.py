"""The training loop: one stage at a time, checkpoints in plain files, exact resume after kill -9.

Nothing in it is left to chance but what the seed decides: the order of an epoch depends on seed and epoch alone, the
learning rate on the step alone, and nothing is dropped out. What must be kept is therefore the weights, the optimizer's
two moments and the number of the step.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from retrievers.errors import BadInput
from retrievers.files import disk_room
from retrievers.generative.settings import GenerativeTraining, Stage
from retrievers.generative.training.examples import Lesson, batches
from retrievers.generative.training.loss import lesson_loss

STATE = "state.json"
LOOK_EVERY = 20
"""Steps from one look at the losses to the next: a look waits for the GPU."""
MINUTE = 60.0
"""Seconds that a checkpoint serves: writing one takes longer than many a small catalogue's epoch."""


@dataclass(slots=True)
class Progress:
    """How far a stage is."""

    step: int = 0
    tokens: int = 0
    loss: float = 0.0
    """The mean over the steps of the epoch under way."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One row an epoch."""
    best: float = -1.0
    leads: bool = False
    """The epoch that was judged last is the best one."""
    waited: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One stage to be run."""

    name: str
    lessons: Sequence[Lesson]
    stage: Stage
    training: GenerativeTraining
    work: Path
    device: str
    progress: bool
    judge: Callable[[], float] | None = None
    """Dev recall; where it is given, the best epoch's weights are kept and patience counts."""


class Loop:
    """Runs a stage over the weights that learn."""

    def __init__(self, model: Any, weights: dict[str, Tensor], job: Job) -> None:
        self._model, self._weights, self._job = model, weights, job
        self._each = math.ceil(len(job.lessons) / job.stage.batch_size)
        self._total = self._each * job.stage.epochs
        self._state, self._unseen, self._saved = Progress(), list[Tensor](), time.monotonic()
        cuda = job.device.startswith("cuda")
        # Rows of tokens are left alone, whatever a model calls them: those that no lesson holds must stay as they are.
        rows = [each.weight for each in (model.get_input_embeddings(), model.get_output_embeddings())]
        plain = [
            value
            for name, value in weights.items()
            if value.ndim < 2 or "embed" in name or any(value is each for each in rows)
        ]
        decayed = [value for value in weights.values() if not any(value is other for other in plain)]
        groups = [
            {"params": decayed, "weight_decay": job.training.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=job.stage.learning_rate, fused=cuda or None)

    def run(self) -> dict[str, Any]:
        """Trains to the end and returns what there is to report."""
        job, state = self._job, self._resumed()
        bar = tqdm(total=self._total, initial=state.step, desc=job.name) if job.progress else None
        while state.step < self._total and state.waited < job.training.patience:
            epoch, skip = divmod(state.step, self._each)
            for place, batch in enumerate(batches(job.lessons, job.stage.batch_size, job.training.seed, epoch)):
                if place < skip:
                    continue
                self._one(batch)
                if len(self._unseen) == LOOK_EVERY:
                    self._look()
                if bar:
                    bar.update()
                    bar.set_postfix(loss=f"{state.loss:.3f}")
                if state.step % job.training.save_every == 0 and state.step % self._each:
                    self._save()
            self._look()
            self._judged(epoch + 1)
            if state.step % job.training.save_every == 0 or time.monotonic() > self._saved + MINUTE:
                self._save()
        if bar:
            bar.close()
        if job.judge is not None and not state.leads and (job.work / "best").exists():
            load_weights(self._weights, job.work / "best" / "weights.safetensors", job.device)
        return {"steps": state.step, "tokens": state.tokens, "examples": len(job.lessons), "history": state.history}

    def _one(self, batch: Sequence[Lesson]) -> None:
        job, state = self._job, self._state
        state.step += 1
        for group in self._optimizer.param_groups:
            group["lr"] = job.stage.learning_rate * _share(state.step, self._total, job.stage.warmup)
        loss, tokens = lesson_loss(self._model, batch, job.device)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(self._weights.values()), job.training.clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._unseen.append(loss.detach())
        state.tokens += tokens

    def _look(self) -> None:
        """Takes note of the losses since the last look."""
        job, state = self._job, self._state
        values = torch.stack(self._unseen).tolist() if self._unseen else []
        self._unseen.clear()
        for step, value in enumerate(values, state.step - len(values) + 1):
            if not math.isfinite(value):
                raise BadInput(f"the loss of {job.name} is no number at step {step}; lower learning_rate")
            state.loss += (value - state.loss) / ((step - 1) % self._each + 1)

    def _judged(self, epoch: int) -> None:
        job, state = self._job, self._state
        row = {"epoch": float(epoch), "loss": state.loss}
        last = state.step >= self._total
        if job.judge is not None and (last or epoch % job.training.judge_every == 0):
            self._model.eval()
            row["recall@5"] = job.judge()
            self._model.train()
            state.waited = 0 if row["recall@5"] > state.best else state.waited + 1
            state.leads = row["recall@5"] >= state.best  # of equals the one that has learned longer
            if state.leads:
                state.best = row["recall@5"]
                # The last epoch's are at hand. If the run is killed now, what it goes on from may not do as well again.
                if not last:
                    write_tensors(job.work / "best", {"weights": self._weights})
        state.history.append(row)
        told = ", ".join(f"{name} {value:.3f}" for name, value in row.items() if name != "epoch")
        tqdm.write(f"{job.name}: epoch {epoch} of {job.stage.epochs}, {told}", file=sys.stderr)

    def _save(self) -> None:
        """A checkpoint, whole or not at all; the one before goes when this one stands."""
        self._look()
        moments = {}
        for name, weight in self._weights.items():
            for moment in ("exp_avg", "exp_avg_sq") if self._optimizer.state[weight] else ():  # unused: no moments
                moments[f"{name}/{moment}"] = self._optimizer.state[weight][moment]
        target = self._job.work / f"step-{self._state.step}"
        facts = {name: getattr(self._state, name) for name in Progress.__slots__}
        write_tensors(target, {"weights": self._weights, "moments": moments}, facts)
        for old in self._job.work.glob("step-*"):
            if old != target:
                shutil.rmtree(old, ignore_errors=True)
        self._saved = time.monotonic()

    def _resumed(self) -> Progress:
        """Takes up the last checkpoint, where there is one."""
        from safetensors.torch import load_file

        found = sorted(self._job.work.glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
        if not found:
            return self._state
        load_weights(self._weights, found[-1] / "weights.safetensors", self._job.device)
        moments = load_file(found[-1] / "moments.safetensors", device=self._job.device)
        facts = json.loads((found[-1] / STATE).read_text())
        for name, weight in self._weights.items():
            if f"{name}/exp_avg" not in moments:
                continue
            self._optimizer.state[weight] = {
                "step": torch.tensor(float(facts["step"]), device=self._job.device if self._fused else "cpu"),
                "exp_avg": moments[f"{name}/exp_avg"],
                "exp_avg_sq": moments[f"{name}/exp_avg_sq"],
            }
        self._state = Progress(**facts)
        return self._state

    @property
    def _fused(self) -> bool:
        return bool(self._optimizer.param_groups[0]["fused"])


def write_tensors(target: Path, files: dict[str, dict[str, Tensor]], facts: dict[str, Any] | None = None) -> None:
    """A folder of tensors, whole or not at all."""
    from safetensors.torch import save_file

    part = target.with_name(f".part-{target.name}")
    shutil.rmtree(part, ignore_errors=True)
    with disk_room(target.parent):
        part.mkdir(parents=True)
        for name, tensors in files.items():
            held = {key: value.detach().contiguous() for key, value in tensors.items()}
            save_file(held, part / f"{name}.safetensors")
        (part / STATE).write_text(json.dumps(facts or {}))
        shutil.rmtree(target, ignore_errors=True)
        os.replace(part, target)


def load_weights(weights: dict[str, Tensor], path: Path, device: str) -> None:
    """Puts saved values into weights."""
    from safetensors.torch import load_file

    with torch.no_grad():
        for name, value in load_file(path, device=device).items():
            weights[name].copy_(value)


def _share(step: int, total: int, warmup: float) -> float:
    """Of the learning rate: up in a line, down along a cosine."""
    rise = max(1, math.ceil(warmup * total))
    if step <= rise:
        return step / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, total - rise)))
