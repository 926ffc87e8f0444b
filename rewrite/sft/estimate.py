"""How much memory and time a training will take, told before it starts; roughly, and nothing is refused for it.

Parameters are counted on the meta device, so that no weights are loaded. Time comes from the multiplications that a
token costs and from how fast this device does some of the model's own.
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
from rewrite.sft.rows import Rows

REACHED = 0.5
"""What a training reaches of the speed of bare multiplications: padding, attention and all that is not one cost it."""
WIDTHS, INNER = 16, 5
"""Numbers kept for the way back, a token and layer: so many times the hidden and the inner width."""
TILE = 32_768
"""Words of the vocabulary that are scored at a time."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes, multiplications, seconds."""

    parameters: int
    trained: int
    weights: int
    states: int
    """Gradients and what the optimizer remembers."""
    activations: int
    free: int
    flops: float
    seconds: float
    work: str
    without: str = "the evaluations"
    """What the seconds leave out."""

    @property
    def memory(self) -> int:
        """All of it."""
        return self.weights + self.states + self.activations

    def told(self) -> list[str]:
        """Two plain lines."""
        parts = f"{_gb(self.weights)} weights, {_gb(self.states)} optimizer, {_gb(self.activations)} activations"
        return [
            f"estimate: {self.parameters / 1e6:.1f} million parameters, {self.trained / 1e6:.1f} of them trained; "
            f"about {_gb(self.memory)} GB of memory ({parts}), {_gb(self.free)} GB are free",
            f"estimate: {self.work}, {self.flops:.2g} FLOPs, about {_spoken(self.seconds)} without {self.without}",
        ]


@dataclass(frozen=True, slots=True)
class Size:
    """A model, counted without loading it."""

    parameters: int
    trained: int
    multiplied: int
    """Weights that every token is multiplied with."""
    config: Any
    full: bool

    @property
    def weights(self) -> int:
        """Bytes of the model and of the adapter on it."""
        return 4 * self.parameters + (0 if self.full else 4 * self.trained)

    @property
    def states(self) -> int:
        """Bytes of gradients and of what the optimizer remembers."""
        return 12 * self.trained


def model_size(base: Path, settings: SftSettings) -> Size:
    """How large a model is, and how much of it is trained."""
    with loading(base), torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            AutoConfig.from_pretrained(base, local_files_only=True)
        )
    parameters = sum(each.numel() for each in model.parameters())
    head: Any = model.get_output_embeddings()
    linear = [each for each in model.modules() if isinstance(each, torch.nn.Linear) and each is not head]
    full = settings.method == "full"
    rank = settings.lora.rank
    trained = parameters if full else sum(rank * (each.in_features + each.out_features) for each in linear)
    multiplied = sum(each.in_features * each.out_features for each in linear) + head.weight.numel()
    return Size(parameters, trained, multiplied, model.config.get_text_config(), full)


def training_flops(size: Size, settings: SftSettings, tokens: float) -> float:
    """Forward, the gradients of what went through, those of the weights, and forward again where nothing is kept."""
    passes = 2 + size.full + settings.gradient_checkpointing
    return 2.0 * passes * size.multiplied * tokens


def estimate(
    base: Path, settings: SftSettings, rows: Rows, device: torch.device, half: bool, processes: int = 1
) -> Estimate:
    """The estimate of a whole run, for every process."""
    size = model_size(base, settings)
    flops = training_flops(size, settings, rows.tokens * settings.epochs)
    length = rows.longest if not settings.packing else settings.most_tokens
    batch = min(settings.batch_size, len(rows.prompts)) * length
    return Estimate(
        size.parameters,
        size.trained,
        size.weights,
        size.states,
        activations(size.config, batch, half, settings.gradient_checkpointing),
        free(device),
        flops,
        flops / (speed(device, half, min(batch, 8192), size.config) * REACHED * processes),
        f"{len(rows.prompts)} examples, {rows.tokens:,} tokens x {settings.epochs:g} epochs",
    )


def activations(config: Any, tokens: int, half: bool, checkpointing: bool) -> int:
    """Bytes that a step keeps for its way back."""
    width, inner = _widths(config)
    size = 3 if half else 4  # norms and the sums between layers stay whole
    layer = tokens * (WIDTHS * width + INNER * inner) * size
    layers = int(config.num_hidden_layers)
    kept = layer + layers * tokens * width * size if checkpointing else layers * layer
    return int(kept) + min(tokens, 4096) * min(TILE, int(config.vocab_size)) * (4 if half else 16)


def speed(device: torch.device, half: bool, tokens: int, config: Any) -> float:
    """Floating point operations a second, in multiplications of the model's own size, looked at for a moment."""
    return _looked_at(device, half, tokens, *_widths(config))


@functools.cache
def _looked_at(device: torch.device, half: bool, tokens: int, width: int, inner: int) -> float:
    kind = torch.bfloat16 if half else torch.float32
    left, right = (torch.ones(shape, dtype=kind, device=device) for shape in ((tokens, width), (width, inner)))
    done, started = 0, 0.0
    for turn in range(2):  # the first turn wakes the device
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < (0.1, 0.4)[turn]:
            for _ in range(4):
                result = left @ right
            _ = float(result[0, 0])  # waits until it is done
            done += 4
    return 2.0 * done * tokens * width * inner / (time.perf_counter() - started)


def _widths(config: Any) -> tuple[int, int]:
    return int(config.hidden_size), int(getattr(config, "intermediate_size", 4 * config.hidden_size))


def free(device: torch.device) -> int:
    """Bytes that nobody uses."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f}"


def _spoken(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
