"""Estimates memory and time of a training before it starts; roughly, and nothing is refused because of it.

Parameters are counted on the meta device, so that no weights are loaded. Time is the multiplications per token, divided
by this device's measured speed at matrices of the model's size.
"""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rewrite.backends.model_folder import loading
from rewrite.settings import SftSettings
from rewrite.sft.callbacks import log_line
from rewrite.sft.rows import TrainingRows

EFFICIENCY = 0.5
"""Share of the bare multiplication speed that a training reaches; padding, attention and the rest take the other."""
HIDDEN_WIDTHS, INNER_WIDTHS = 16, 5
"""Numbers kept for the backward pass per token and layer, in multiples of the hidden and of the inner width."""
VOCABULARY_TILE = 32_768
"""Words of the vocabulary that are scored at a time."""


@dataclass(frozen=True, slots=True)
class TrainingEstimate:
    """Estimated bytes, floating point operations and seconds."""

    parameters: int
    trained: int
    weights: int
    states: int
    """Bytes of gradients and optimizer state."""
    activations: int
    free: int
    flops: float
    seconds: float
    work: str
    without: str = "the evaluations"
    """Part that the seconds leave out."""

    @property
    def memory(self) -> int:
        """Bytes in all."""
        return self.weights + self.states + self.activations

    def lines(self) -> list[str]:
        """Two lines of text."""
        parts = f"{_gb(self.weights)} weights, {_gb(self.states)} optimizer, {_gb(self.activations)} activations"
        return [
            f"estimate: {self.parameters / 1e6:.1f} million parameters, {self.trained / 1e6:.1f} of them trained; "
            f"about {_gb(self.memory)} GB of memory ({parts}), {_gb(self.free)} GB are free",
            f"estimate: {self.work}, {self.flops:.2g} FLOPs, about {_duration(self.seconds)} without {self.without}",
        ]

    def log(self) -> None:
        """Prints the lines."""
        for line in self.lines():
            log_line(line)


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Size of a model, counted without loading it."""

    parameters: int
    trained: int
    multiplied: int
    """Weights that every token is multiplied with."""
    config: Any
    full: bool

    @property
    def weights(self) -> int:
        """Bytes of the model and of its adapter."""
        return 4 * self.parameters + (0 if self.full else 4 * self.trained)

    @property
    def states(self) -> int:
        """Bytes of gradients and optimizer state."""
        return 12 * self.trained


def model_size(base: Path, settings: SftSettings) -> ModelSize:
    """Counts a model's parameters, and those that are trained."""
    with loading(base), torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            AutoConfig.from_pretrained(base, local_files_only=True)
        )
    parameters = sum(weight.numel() for weight in model.parameters())
    head: Any = model.get_output_embeddings()
    linear = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear) and layer is not head]
    full, rank = settings.method == "full", settings.lora.rank
    trained = parameters if full else sum(rank * (layer.in_features + layer.out_features) for layer in linear)
    multiplied = sum(layer.in_features * layer.out_features for layer in linear) + head.weight.numel()
    return ModelSize(parameters, trained, multiplied, model.config.get_text_config(), full)


def training_flops(size: ModelSize, settings: SftSettings, tokens: float) -> float:
    """Operations of forward and backward passes; with gradient checkpointing, of a second forward pass too."""
    passes = 2 + size.full + settings.gradient_checkpointing
    return 2.0 * passes * size.multiplied * tokens


def estimate(
    base: Path, settings: SftSettings, rows: TrainingRows, device: torch.device, half: bool, processes: int = 1
) -> TrainingEstimate:
    """Estimates a whole run, per process."""
    size = model_size(base, settings)
    flops = training_flops(size, settings, rows.tokens * settings.epochs)
    length = rows.longest if not settings.packing else settings.max_tokens
    batch = min(settings.batch_size, len(rows.prompts)) * length
    return TrainingEstimate(
        size.parameters,
        size.trained,
        size.weights,
        size.states,
        activations(size.config, batch, half, settings.gradient_checkpointing),
        free_memory(device),
        flops,
        flops / (speed(device, half, min(batch, 8192), size.config) * EFFICIENCY * processes),
        f"{len(rows.prompts)} examples, {rows.tokens:,} tokens x {settings.epochs:g} epochs",
    )


def activations(config: Any, tokens: int, half: bool, checkpointing: bool) -> int:
    """Bytes that a step keeps for the backward pass."""
    width, inner = _widths(config)
    size = 3 if half else 4  # norms and residual sums stay in float32
    layer = tokens * (HIDDEN_WIDTHS * width + INNER_WIDTHS * inner) * size
    layers = int(config.num_hidden_layers)
    kept = layer + layers * tokens * width * size if checkpointing else layers * layer
    return int(kept) + min(tokens, 4096) * min(VOCABULARY_TILE, int(config.vocab_size)) * (4 if half else 16)


def speed(device: torch.device, half: bool, tokens: int, config: Any) -> float:
    """Floating point operations per second, measured briefly on matrices of the model's size."""
    return _measure_speed(device, half, tokens, *_widths(config))


@functools.cache
def _measure_speed(device: torch.device, half: bool, tokens: int, width: int, inner: int) -> float:
    dtype = torch.bfloat16 if half else torch.float32
    left, right = (torch.ones(shape, dtype=dtype, device=device) for shape in ((tokens, width), (width, inner)))
    done, started = 0, 0.0
    for seconds in (0.1, 0.4):  # the first round warms up the device
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            for _ in range(4):
                result = left @ right
            _ = float(result[0, 0])  # waits until it is done
            done += 4
    return 2.0 * done * tokens * width * inner / (time.perf_counter() - started)


def _widths(config: Any) -> tuple[int, int]:
    return int(config.hidden_size), int(getattr(config, "intermediate_size", 4 * config.hidden_size))


def free_memory(device: torch.device) -> int:
    """Free bytes of a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
