"""Choose the blend of tuned and original weights on data sets that were left out of training, with caution.

A data set clearly loses when its recall falls by more than `max_loss` beyond one standard error of the paired
difference. Of the blends under which no data set clearly loses, the one with the highest mean is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Recalls = Mapping[str, Mapping[float, np.ndarray]]
"""Data set, blend -> recall per query. Blend 0 is the base model."""


@dataclass(frozen=True, slots=True)
class BlendScore:
    """One blend on all left-out data sets."""

    blend: float
    mean: float
    """Mean over data sets."""
    worst: float
    """Change of the data set that lost most."""
    worst_set: str
    clear_losses: tuple[str, ...]


def score_blends(recalls: Recalls, max_loss: float) -> list[BlendScore]:
    """All blends, the chosen one first, the others by mean."""
    scores = [_score(recalls, blend, max_loss) for blend in sorted(next(iter(recalls.values())))]
    return sorted(scores, key=lambda score: (bool(score.clear_losses), -round(score.mean, 6), score.blend))


def _score(recalls: Recalls, blend: float, max_loss: float) -> BlendScore:
    changes = {name: own[blend] - own[0.0] for name, own in recalls.items()}
    means = {name: float(change.mean()) for name, change in changes.items()}
    errors = {name: float(change.std() / np.sqrt(len(change))) for name, change in changes.items()}
    worst = min(means, key=lambda name: means[name])
    return BlendScore(
        blend,
        float(np.mean([own[blend].mean() for own in recalls.values()])),
        means[worst],
        worst,
        tuple(name for name in means if means[name] + errors[name] < -max_loss),
    )
