"""Training of one encoder on many sets: any sentence-transformers model, seeded, resumed after a kill."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from retrievers.dense.tuning.mixture import Mixture
from retrievers.dense.tuning.schedule import rate
from retrievers.errors import BadInput
from retrievers.progress import Progress
from retrievers.settings import WARMUP, WEIGHT_DECAY, MixtureTraining

CHECKPOINT = "checkpoint.safetensors"
CHECK_EVERY = 25  # steps between two looks at the loss: each look waits for the GPU
SAVE_EVERY = 250  # steps between two checkpoints
MAX_NORM = 1.0
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Length and rate of a training."""

    steps: int
    learning_rate: float
    seed: int
    label: str
    """Names the stage in the progress."""


def train_mixture(
    model: Any, mixture: Mixture, settings: MixtureTraining, seed: int, work: Path, show: bool
) -> list[tuple[int, float]]:
    """Train the model in place, or continue from the checkpoint in `work`; return steps with their losses."""
    plan = StepPlan(settings.steps, settings.learning_rate, seed, "training the encoder")
    model.train()
    parameters = freeze_parameters(model, settings.freeze)
    losses = train_steps(parameters, lambda step: [mixture.loss(model, mixture.draw(step))], plan, work, show)
    model.eval()
    return losses


def train_steps(
    parameters: Mapping[str, torch.nn.Parameter],
    losses_of: Callable[[int], Iterable[Tensor]],
    plan: StepPlan,
    work: Path,
    show: bool,
) -> list[tuple[int, float]]:
    """Train parameters in place, or continue from the checkpoint in `work`; return steps with their losses.

    `losses_of` gives the parts of a step's loss, whose gradients are added one after the other.
    """
    torch.backends.cuda.matmul.allow_tf32 = True  # not set_float32_matmul_precision: a CPU would emulate bfloat16
    optimizer = torch.optim.AdamW(parameters.values(), plan.learning_rate, weight_decay=WEIGHT_DECAY)
    first, losses = _resume(work / CHECKPOINT, parameters, optimizer), []
    warmup = max(1, math.ceil(WARMUP * plan.steps))
    with Progress(plan.label, plan.steps, "steps", show, first) as progress:
        for step in range(first, plan.steps):
            torch.manual_seed(plan.seed * 1_000_003 + step)  # dropout of a resumed run is that of a whole one
            for group in optimizer.param_groups:
                group["lr"] = plan.learning_rate * rate(step, warmup, plan.steps)
            optimizer.zero_grad(set_to_none=True)
            total = torch.zeros(())
            for loss in losses_of(step):
                loss.backward()  # type: ignore[no-untyped-call]
                total = total.to(loss.device) + loss.detach()
            torch.nn.utils.clip_grad_norm_(parameters.values(), MAX_NORM)
            optimizer.step()
            note = ""
            if (step + 1) % CHECK_EVERY == 0 or step + 1 == plan.steps:
                losses.append((step + 1, _finite(total, step + 1)))
                note = f"loss {losses[-1][1]:.3f}"
            if (step + 1) % SAVE_EVERY == 0:
                _save(work / CHECKPOINT, step + 1, parameters, optimizer)
            progress.add(note=note)
    return losses


def freeze_parameters(model: Any, frozen: tuple[str, ...]) -> dict[str, torch.nn.Parameter]:
    """Freeze the parameters whose names contain one of `frozen`; return those that training changes."""
    for name, parameter in model.named_parameters():
        if any(part in name for part in frozen):
            parameter.requires_grad_(False)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained:
        raise BadInput(f"training.freeze leaves no weights to train: {', '.join(frozen)}")
    return trained


def _finite(loss: Tensor, step: int) -> float:
    value = float(loss.detach())
    if not math.isfinite(value):
        raise BadInput(f"the loss is {value} at step {step}; lower training.learning_rate, or raise the temperature")
    return value


def _save(path: Path, step: int, parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint, whole or not at all."""
    tensors = {f"model|{name}": value.detach().clone().contiguous() for name, value in parameters.items()}
    for name, parameter in parameters.items():
        state = optimizer.state.get(parameter, {})  # none for weights that no output depends on
        tensors |= {f"{key}|{name}": state[key].contiguous() for key in MOMENTS if state}
    part = path.with_suffix(".part")
    save_file(tensors, part, {"step": str(step)})
    os.replace(part, path)


def _resume(path: Path, parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> int:
    """Load a checkpoint, if there is one; return its step."""
    if not path.is_file():
        return 0
    try:
        with safe_open(path, "pt") as stream:
            step = int(stream.metadata()["step"])
        tensors = load_file(path)
    except (SafetensorError, KeyError, ValueError):
        return 0
    if any(f"model|{name}" not in tensors for name in parameters):
        return 0
    for name, parameter in parameters.items():
        parameter.data.copy_(tensors[f"model|{name}"])
        if f"{MOMENTS[0]}|{name}" in tensors:
            moments = {key: tensors[f"{key}|{name}"].to(parameter.device) for key in MOMENTS}
            optimizer.state[parameter] = {"step": torch.tensor(float(step)), **moments}
    return step
