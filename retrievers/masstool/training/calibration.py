"""Choices on dev once training is over: a factor per learned part, and trained or untrained heads.

The encoder has seen the training queries but not the dev queries, so only dev shows how much votes are worth beside the
text. A handful of numbers is chosen one after the other, twice. Each may be 0: a part that does not help on dev is not
used, down to plain search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from retrievers.masstool.model import Heads
from retrievers.masstool.serving.heads import SCALES

CHOICES = {
    "votes": (0.0, 0.15, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0),
    "sharpness": (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0),
    "tools": (0.0, 0.25, 0.5, 0.75, 1.0, 1.25),
    "adapter": (0.0, 0.25, 0.5, 0.75, 1.0, 1.25),
    "transfer": (0.0, 0.25, 0.5, 0.75, 1.0),
}
THRESHOLDS = (-1.0, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
MIN_GAIN = 1e-5


def calibrate(heads: Heads, dev: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Leave the best factors and threshold in the heads, and return them by name."""
    best = dev()["mean"]
    for _ in range(2):
        for index, name in enumerate(SCALES):
            best = _choose(heads.scales, index, CHOICES[name], best, dev)
        if heads.settings.modules.filter and heads.settings.modules.intent:
            best = _choose(heads.threshold.view(1), 0, THRESHOLDS, best, dev)
    chosen = {name: round(float(heads.scales[index]), 6) for index, name in enumerate(SCALES)}
    return {**chosen, "threshold": round(float(heads.threshold), 6)}


def calibrate_threshold(heads: Heads, dev: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Leave the best threshold of neighbours in the heads, and return it."""
    _choose(heads.threshold.view(1), 0, THRESHOLDS, dev()["mean"], dev)
    return {"threshold": round(float(heads.threshold), 6)}


def keep_best(
    heads: Heads, dev: Callable[[], dict[str, float]], states: Mapping[str, Mapping[str, torch.Tensor]]
) -> dict[str, Any]:
    """Leave the heads in the state that is best on dev after calibration; of equals the first.

    Where the encoder has memorised its training queries, the heads learn little from them, or something wrong: votes as
    they start may be better than trained ones.
    """
    tried = {}
    for name, state in states.items():
        heads.load_state_dict(state)
        chosen = calibrate(heads, dev)
        calibrated = {key: value.detach().clone() for key, value in heads.state_dict().items()}
        tried[name] = dev()["mean"], calibrated, chosen
    kept = max(tried, key=lambda name: tried[name][0])
    heads.load_state_dict(tried[kept][1])
    return {"chosen": tried[kept][2], "kept": kept, "calibrated": {name: result[0] for name, result in tried.items()}}


def _choose(
    values: torch.Tensor, index: int, choices: tuple[float, ...], best: float, dev: Callable[[], dict[str, float]]
) -> float:
    kept = float(values[index])
    for choice in choices:
        if choice == kept:
            continue
        values[index] = choice
        mean = dev()["mean"]
        if mean > best + MIN_GAIN:
            best, kept = mean, choice
    values[index] = kept
    return best
