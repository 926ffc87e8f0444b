"""Co-usage of tools, and the loss that draws co-used tools together: a graph Laplacian."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from retrievers.training_set import TrainingSet
from retrievers.types import ToolId


@dataclass(frozen=True, slots=True)
class CoUsage:
    """Pairs of tools that were used together."""

    pairs: np.ndarray
    """(pairs, 2): rows of the tools; each pair once."""
    weights: np.ndarray
    """(pairs,): times together over the geometric mean of the times of each, so at most 1."""


def count_co_usage(groups: Iterable[Sequence[int]]) -> CoUsage:
    """Count pairs in groups of tools that served one query or one task."""
    alone: Counter[int] = Counter()
    together: Counter[tuple[int, int]] = Counter()
    for group in groups:
        members = sorted(set(group))
        alone.update(members)
        together.update(combinations(members, 2))
    pairs = sorted(together)
    weights = [together[a, b] / (alone[a] * alone[b]) ** 0.5 for a, b in pairs]
    return CoUsage(np.array(pairs, dtype=np.int64).reshape(-1, 2), np.array(weights, dtype=np.float32))


def co_usage_of(ids: Sequence[ToolId], sets: Sequence[TrainingSet]) -> CoUsage:
    """Co-usage in training queries and trajectories; dev queries do not count."""
    rows = {tool: row for row, tool in enumerate(ids)}
    groups = [[data.ids[row] for row in gold] for data in sets for gold in data.train.gold]
    groups += [[call.tool for call in trajectory.calls] for data in sets for trajectory in data.trajectories]
    return count_co_usage([rows[tool] for tool in group if tool in rows] for group in groups)


class CoUsageGraph:
    """The graph of co-usage, arranged for training steps."""

    def __init__(self, usage: CoUsage, tools: int, device: str) -> None:
        both = np.concatenate([usage.pairs, usage.pairs[:, ::-1]])
        weights = np.concatenate([usage.weights, usage.weights])
        order = np.argsort(both[:, 0], kind="stable")
        self._tails = torch.from_numpy(both[order, 1].copy()).to(device)
        self._heads = torch.from_numpy(both[order, 0].copy()).to(device)
        self._weights = torch.from_numpy(weights[order]).to(device)
        self._sums = self._weights.double().cumsum(0)
        counts = np.bincount(both[:, 0], minlength=tools)
        self._starts = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)])).to(device)
        self._tools = tools

    def laplacian_loss(self, vectors: Tensor) -> Tensor:
        """The mean over all tools u of the sum over v of A_uv |x_u - x_v|^2, given all tools' vectors."""
        distances = (vectors[self._heads] - vectors[self._tails]).square().sum(dim=-1)
        return (self._weights * distances).sum() / self._tools

    def sample_partners(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """For each row one co-used tool, sampled by weight, and the sum of the row's weights: 0 without partners.

        The mean of sum x |x_u - x_v|^2 over random rows is an unbiased estimate of the whole loss.
        """
        if not len(self._sums):
            return rows, torch.zeros(len(rows), device=rows.device)
        first, last = self._starts[rows], self._starts[rows + 1]
        before = torch.where(first > 0, self._sums[(first - 1).clamp(min=0)], 0.0)
        total = torch.where(last > first, self._sums[(last - 1).clamp(min=0)] - before, 0.0)
        target = before + total * torch.rand(len(rows), generator=generator, dtype=torch.float64).to(rows.device)
        edge = torch.searchsorted(self._sums, target, right=True).clamp(max=len(self._sums) - 1)
        edge = torch.minimum(torch.maximum(edge, first), (last - 1).clamp(min=0))
        return torch.where(last > first, self._tails[edge], rows), total.float()
