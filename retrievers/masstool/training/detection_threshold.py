"""The detector's last step: how much the words count beside the vector, and from where on a tool is needed.

Both the tower and the words were fitted to training labels, so what they are worth together shows only on dev.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from retrievers.masstool.hashed_words import fit, logits
from retrievers.masstool.losses import probabilities
from retrievers.masstool.model import Heads
from retrievers.masstool.training.calibration import best_threshold
from retrievers.masstool.training.tensors import Labelled

SHARES = (0.5, 0.25, 0.75, 0.0, 1.0)
"""Of the words; the tower has the rest."""
SPREAD = 2.0
"""How far both logits lie around their mean before they are mixed: neither drowns the other, and probabilities are not
all 0 or 1."""


@torch.no_grad()
def decide(
    heads: Heads, labels: Labelled, dev: Labelled, first: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Leaves in the heads the words' weights and share, and tells the threshold with the best balanced accuracy on dev.

    Of equal thresholds the lowest, since searching in vain costs less; of equal shares the more even. Where dev does
    not hold both kinds of queries, what an earlier run decided, `first`, stands; without one there is no detector.
    """
    if not dev.both():
        return _stand_by(heads, labels, first) if first else None
    heads.eval()
    needs = dev.needs.cpu().tolist()
    tower = heads.needs(dev.vectors)
    if heads.settings.faithful or not (labels.texts and dev.texts and labels.both()):
        return best_threshold(probabilities(tower).double().cpu().tolist(), needs)
    weights = fit(labels.texts, labels.needs)
    worded, tower = logits(weights, dev.texts), tower.cpu().float()
    spread = [SPREAD / float(each.std().clamp(min=1e-6)) for each in (tower, worded)]
    tried = {}
    for share in SHARES:
        mixed = (1 - share) * spread[0] * tower + share * spread[1] * worded
        tried[share] = best_threshold(torch.sigmoid(mixed).double().tolist(), needs)
    best = max(SHARES, key=lambda share: tried[share]["balanced_accuracy"])
    heads.telling.copy_(torch.tensor([(1 - best) * spread[0], best * spread[1]]))
    heads.words = weights.to(heads.telling.device) if best else heads.words
    told = {str(share): each["balanced_accuracy"] for share, each in sorted(tried.items())}
    return {**tried[best], "words": best, "shares": told, "telling": heads.telling.tolist()}


def _stand_by(heads: Heads, labels: Labelled, first: Mapping[str, Any]) -> dict[str, Any]:
    """Threshold and shares of an earlier run, in these heads. Its scores are not theirs, and stand apart."""
    if "telling" in first:
        heads.telling.copy_(torch.tensor(first["telling"]))
        heads.words = fit(labels.texts, labels.needs).to(heads.telling.device) if first["words"] else heads.words
    numbers = {name: first[name] for name in ("threshold", "words", "telling") if name in first}
    return {**numbers, "first_run": dict(first)}
