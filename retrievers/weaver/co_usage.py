"""Which tools are used together, and the loss that draws them together: a graph Laplacian over co-usage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Usage:
    """Pairs of rows that were used together, each once, and how strongly they belong together."""

    pairs: np.ndarray
    """(pairs, 2)"""
    weights: np.ndarray
    """(pairs,): times together over the geometric mean of the times of each, so at most 1."""


def co_usage(groups: Iterable[Sequence[int]]) -> Usage:
    """From sets of tools that served one query or one task."""
    alone: Counter[int] = Counter()
    together: Counter[tuple[int, int]] = Counter()
    for group in groups:
        members = sorted(set(group))
        alone.update(members)
        together.update(combinations(members, 2))
    pairs = sorted(together)
    weights = [together[a, b] / (alone[a] * alone[b]) ** 0.5 for a, b in pairs]
    return Usage(np.array(pairs, dtype=np.int64).reshape(-1, 2), np.array(weights, dtype=np.float32))


class Graph:
    """Co-usage as a training step asks for it."""

    def __init__(self, usage: Usage, tools: int, device: str) -> None:
        both = np.concatenate([usage.pairs, usage.pairs[:, ::-1]])
        weights = np.concatenate([usage.weights, usage.weights])
        order = np.argsort(both[:, 0], kind="stable")
        self._ends = torch.from_numpy(both[order, 1].copy()).to(device)
        self._heads = torch.from_numpy(both[order, 0].copy()).to(device)
        self._weights = torch.from_numpy(weights[order]).to(device)
        self._sums = self._weights.double().cumsum(0)
        counts = np.bincount(both[:, 0], minlength=tools)
        self._starts = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)])).to(device)
        self._tools = tools

    def whole(self, vectors: Tensor) -> Tensor:
        """The mean over all tools u of the sum over v of A_uv |x_u - x_v|^2, given all tools' vectors."""
        apart = (vectors[self._heads] - vectors[self._ends]).square().sum(dim=-1)
        return (self._weights * apart).sum() / self._tools

    def partners(self, rows: Tensor, chance: torch.Generator) -> tuple[Tensor, Tensor]:
        """For each row one tool that it is used with, drawn by weight, and the sum of its weights: 0 for a loner.

        The mean of sum x |x_u - x_v|^2 over random rows is the whole loss, on average.
        """
        first, last = self._starts[rows], self._starts[rows + 1]
        before = torch.where(first > 0, self._sums[(first - 1).clamp(min=0)], 0.0) if len(self._sums) else first * 0.0
        total = (
            torch.where(last > first, self._sums[(last - 1).clamp(min=0)] - before, 0.0) if len(self._sums) else before
        )
        drawn = before + total * torch.rand(len(rows), generator=chance, dtype=torch.float64).to(rows.device)
        place = torch.searchsorted(self._sums, drawn, right=True).clamp(max=max(0, len(self._sums) - 1))
        place = torch.minimum(torch.maximum(place, first), (last - 1).clamp(min=0))
        partner = torch.where(last > first, self._ends[place], rows) if len(self._sums) else rows
        return partner, total.float()
