"""What dev chooses once training is over: how much of everything learned to keep, and where a tool is needed.

Training queries were seen by the encoder, dev queries were not: what the votes are worth beside the text shows only
there. A handful of single numbers is chosen, one after the other, twice. Among them is 0: a part that does not help on
dev is not used, down to plain search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch

from retrievers.masstool.model import Heads

SHARES = {
    "votes": (0, (0.0, 0.15, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)),
    "sharpness": (1, (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)),
    "tools": (2, (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)),
    "adapter": (3, (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)),
    "lending": (4, (0.0, 0.25, 0.5, 0.75, 1.0)),
}
THRESHOLDS = (-1.0, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
LEAST = 1e-5
"""A gain below this is none."""


def calibrate(heads: Heads, dev: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Leaves in the heads the numbers that dev likes best, and names them."""
    best = dev()["mean"]
    shares, threshold = heads.shares, heads.threshold
    for _ in range(2):
        for place, choices in SHARES.values():
            best = _choose(shares, place, choices, best, dev)
        if heads.settings.modules.filter and heads.settings.modules.intent:
            best = _choose(threshold.view(1), 0, THRESHOLDS, best, dev)
    named = {name: round(float(shares[place]), 6) for name, (place, _) in SHARES.items()}
    return {**named, "threshold": round(float(threshold), 6)}


def keep_best(
    heads: Heads, dev: Callable[[], dict[str, float]], states: Mapping[str, Mapping[str, torch.Tensor]]
) -> dict[str, Any]:
    """Leaves the heads in the state that dev likes best once it has been calibrated; of equals the first.

    An encoder that knows its training queries by heart leaves the heads little to learn, and something wrong to learn:
    votes as they start may be worth more than votes that were trained.
    """
    tried = {}
    for name, state in states.items():
        heads.load_state_dict(state)
        chosen = calibrate(heads, dev)
        calibrated = {key: value.detach().clone() for key, value in heads.state_dict().items()}
        tried[name] = dev()["mean"], calibrated, chosen
    kept = max(tried, key=lambda name: tried[name][0])
    heads.load_state_dict(tried[kept][1])
    return {"chosen": tried[kept][2], "kept": kept, "calibrated": {name: each[0] for name, each in tried.items()}}


def take_over(heads: Heads, first: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves in the heads the numbers that dev chose in an earlier run."""
    chosen = first["chosen"]
    with torch.no_grad():
        for name, (place, _) in SHARES.items():
            heads.shares[place] = chosen[name]
        heads.threshold.fill_(chosen["threshold"])
    return {"chosen": chosen, "kept": first["kept"]}


def _choose(
    held: torch.Tensor, place: int, choices: tuple[float, ...], best: float, dev: Callable[[], dict[str, float]]
) -> float:
    kept = float(held[place])
    for choice in choices:
        if choice == kept:
            continue
        held[place] = choice
        found = dev()["mean"]
        if found > best + LEAST:
            best, kept = found, choice
    held[place] = kept
    return best


def best_threshold(found: list[float], needs: list[bool]) -> dict[str, Any]:
    """Looks at every place between two neighbouring probabilities."""
    order = sorted(set(found))
    places = [0.0, *((low + high) / 2 for low, high in pairwise(order))]
    p, y = torch.tensor(found, dtype=torch.float64), torch.tensor(needs)
    sides = [p[y].sort().values, p[~y].sort().values]
    cuts = torch.tensor(places, dtype=torch.float64)
    kept = 1 - torch.searchsorted(sides[0], cuts) / len(sides[0])  # needing ones at or above the cut
    refused = torch.searchsorted(sides[1], cuts) / len(sides[1])
    balanced = (kept + refused) / 2
    best = int(balanced.argmax())  # the first of equals: the lowest
    return {
        "threshold": round(places[best], 6),
        "balanced_accuracy": float(balanced[best]),
        "kept": float(kept[best]),
        "refused": float(refused[best]),
        "queries": len(found),
    }
