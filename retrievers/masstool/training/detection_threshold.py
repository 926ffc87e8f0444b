"""Chooses on dev the detector's threshold and the weight of words beside the vector."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from retrievers.masstool.hashed_words import word_logits
from retrievers.masstool.model import Heads
from retrievers.masstool.training.tensors import LabelledVectors
from retrievers.masstool.training.word_fit import fit_words

WORD_SHARES = (0.5, 0.25, 0.75, 0.0, 1.0)
SPREAD = 2.0
"""Standard deviation of both logits before they are mixed, so that neither drowns the other."""


@torch.no_grad()
def choose_threshold(
    heads: Heads, labels: LabelledVectors, dev: LabelledVectors, fixed: float | None = None
) -> dict[str, Any] | None:
    """Leave words' weights and share in the heads; return the threshold with the best balanced accuracy on dev.

    Of equal thresholds the lowest, since a search in vain costs less than a tool withheld; of equal shares the more
    even. `fixed`: a threshold that dev does not choose. None: dev does not hold both kinds of queries, and there is no
    detector.
    """
    if not dev.has_both_kinds():
        return None
    heads.eval()
    needs = dev.needs.cpu().tolist()
    tower = heads.detection_logits(dev.vectors)
    if not (heads.uses_words and labels.texts and dev.texts and labels.has_both_kinds()):
        return best_threshold(heads.probabilities(tower).double().cpu().tolist(), needs, fixed)
    weights = fit_words(labels.texts, labels.needs)
    words, tower = torch.from_numpy(word_logits(weights.numpy(), dev.texts)), tower.cpu().float()
    scales = [SPREAD / float(logits.std().clamp(min=1e-6)) for logits in (tower, words)]
    tried = {}
    for share in WORD_SHARES:
        mixed = (1 - share) * scales[0] * tower + share * scales[1] * words
        tried[share] = best_threshold(torch.sigmoid(mixed).double().tolist(), needs, fixed)
    best = max(WORD_SHARES, key=lambda share: tried[share]["balanced_accuracy"])
    heads.detection_mix.copy_(torch.tensor([(1 - best) * scales[0], best * scales[1]]))
    heads.word_weights = weights.to(heads.detection_mix.device) if best else heads.word_weights
    accuracies = {str(share): result["balanced_accuracy"] for share, result in sorted(tried.items())}
    return {**tried[best], "words": best, "shares": accuracies}


def best_threshold(probabilities: list[float], needs: list[bool], fixed: float | None = None) -> dict[str, Any]:
    """Try every threshold between two neighbouring probabilities, or the fixed one alone."""
    order = sorted(set(probabilities))
    thresholds = [0.0, *((low + high) / 2 for low, high in pairwise(order))] if fixed is None else [fixed]
    p, y = torch.tensor(probabilities, dtype=torch.float64), torch.tensor(needs)
    sides = [p[y].sort().values, p[~y].sort().values]
    cuts = torch.tensor(thresholds, dtype=torch.float64)
    kept = 1 - torch.searchsorted(sides[0], cuts) / len(sides[0])  # at or above the cut, of those that need a tool
    refused = torch.searchsorted(sides[1], cuts) / len(sides[1])
    balanced = (kept + refused) / 2
    best = int(balanced.argmax())  # the first of equals: the lowest
    return {
        "threshold": round(thresholds[best], 6),
        "balanced_accuracy": float(balanced[best]),
        "kept": float(kept[best]),
        "refused": float(refused[best]),
        "queries": len(probabilities),
    }
