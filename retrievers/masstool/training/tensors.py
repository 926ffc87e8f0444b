"""What MassTool learns from, as numbers: vectors, gold rows, labels; and how well a list of tools does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from retrievers.masstool.model import Near

FOUND = 10
"""Places of a ranking that dev looks at."""
SCORES_AT_ONCE = 16_000_000


@dataclass(frozen=True, slots=True)
class Labelled:
    """Vectors of queries, and which of them need a tool."""

    vectors: Tensor
    needs: Tensor
    texts: Sequence[str] = ()
    """Their words, which a detector may look at beside the vectors."""

    def both(self) -> bool:
        """Are there such and such?"""
        return bool(self.needs.any()) and not bool(self.needs.all())

    def to(self, device: str) -> Labelled:
        """The same elsewhere."""
        return Labelled(self.vectors.to(device), self.needs.to(device), self.texts)


def nothing(dimensions: int) -> Labelled:
    """No labels at all."""
    return Labelled(torch.zeros(0, dimensions), torch.zeros(0, dtype=torch.bool))


@dataclass(frozen=True, slots=True)
class Lessons:
    """One catalogue, its training and dev queries, all embedded."""

    tools: Tensor
    train: Tensor
    gold: Sequence[Sequence[int]]
    dev: Tensor
    dev_gold: Sequence[Sequence[int]]
    labels: Labelled
    dev_labels: Labelled

    def to(self, device: str) -> Lessons:
        """The same elsewhere."""
        labels = [self.labels.to(device), self.dev_labels.to(device)]
        moved = [each.to(device) for each in (self.tools, self.train, self.dev)]
        return Lessons(moved[0], moved[1], self.gold, moved[2], self.dev_gold, *labels)


def nearest(queries: Tensor, keys: Tensor, count: int, itself: bool = False) -> Near:
    """The nearest keys of every query; `itself`: queries and keys are the same, and no query is its own neighbour."""
    most = min(count, len(keys) - itself)
    step = max(1, SCORES_AT_ONCE // max(1, len(keys)))
    rows, cosines = [], []
    for start in range(0, len(queries), step):
        scores = queries[start : start + step] @ keys.T
        if itself:
            places = torch.arange(len(scores), device=scores.device)
            scores[places, places + start] = -torch.inf
        best = scores.topk(max(0, most))
        rows.append(best.indices)
        cosines.append(best.values)
    if not rows or most <= 0:
        shape = (len(queries), 1)
        return Near(queries.new_zeros(shape, dtype=torch.long), queries.new_zeros(shape), queries.new_zeros(shape) > 0)
    found = torch.cat(rows)
    return Near(found, torch.cat(cosines), torch.ones_like(found, dtype=torch.bool))


@dataclass(frozen=True, slots=True)
class Judge:
    """Dev metrics of rankings, by one table of gold rows."""

    gold: Tensor
    """(queries, most gold tools), padded with -1"""
    counts: Tensor
    discounts: Tensor = field(default_factory=lambda: 1.0 / torch.log2(torch.arange(2, FOUND + 2).double()))

    def __call__(self, scores: Tensor) -> dict[str, float]:
        """Means over queries; `mean` of them all is what dev selection goes by."""
        top = scores.topk(min(FOUND, scores.shape[1])).indices
        right = (top[:, :, None] == self.gold[:, None, :]).any(-1).double()  # (queries, places)
        shares = right.cumsum(1) / self.counts[:, None]
        ideal = self.discounts.cumsum(0).to(top.device)
        place = (self.counts.clamp(max=5) - 1).long()
        gained = (right[:, :5] * self.discounts[: right[:, :5].shape[1]].to(top.device)).sum(1) / ideal[place]
        at = {3: min(3, shares.shape[1]) - 1, 5: min(5, shares.shape[1]) - 1}
        found = {
            "recall@3": float(shares[:, at[3]].mean()),
            "recall@5": float(shares[:, at[5]].mean()),
            "ndcg@5": float(gained.mean()),
            "comp@3": float((shares[:, at[3]] > 1 - 1e-9).double().mean()),
        }
        return {"mean": sum(found.values()) / len(found), **found}


def judge(gold: Sequence[Sequence[int]], device: str | torch.device = "cpu") -> Judge:
    """A judge of these queries."""
    width = max(map(len, gold))
    table = torch.full((len(gold), width), -1, dtype=torch.long)
    for row, each in enumerate(gold):
        table[row, : len(each)] = torch.tensor(list(each), dtype=torch.long)
    return Judge(table.to(device), torch.tensor([float(len(each)) for each in gold], dtype=torch.float64).to(device))
