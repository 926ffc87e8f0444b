"""Which share the raw query gets beside its rewrite: tried on dev, the best taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.search import ToolSearch
from retrievers.settings import RewriteFusion
from retrievers.types import Ranking, ToolId
from reward.metrics import judge, measure

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
GRID = (
    *(RewriteFusion("weighted", share) for share in SHARES),
    *(RewriteFusion("rrf", share) for share in SHARES[1:-1]),
    *(RewriteFusion("interleave", share) for share in (0.0, 0.25, 0.75)),
)
"""Raw alone is among them: a rewriter that only harms is left out."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One way to fuse and what dev says of it."""

    fusion: RewriteFusion
    score: float


def choose_fusion(
    search: ToolSearch,
    utterances: Sequence[str],
    raw: Sequence[Ranking],
    lists: Sequence[Sequence[Ranking]],
    gold: Sequence[frozenset[ToolId]],
    metric: str = "recall@5",
    grid: Sequence[RewriteFusion] = GRID,
) -> list[Tried]:
    """Every way of the grid with its score, the best first; of equals the one that trusts the raw query more."""
    tried = []
    for fusion in grid:
        fused = [
            search.fuse(utterance, first, lines, 20, fusion).ids
            for utterance, first, lines in zip(utterances, raw, lists, strict=True)
        ]
        tried.append(Tried(fusion, float(measure(metric, judge(fused, gold)).mean())))
    return sorted(tried, key=lambda each: (-round(each.score, 6), -each.fusion.raw))
