"""Which share the raw query gets beside its rewrite: tried on dev, chosen with caution.

Of all ways that are not clearly worse than the best one on dev (by more than one standard error of the difference), the
one that trusts the raw query most is taken. A gain that may be chance is not bought with the risk of harm.

Then the gate: a raw query whose first tool scores at least so much keeps its ranking, and a server need not even ask
the rewriter. Taken is the gate that serves dev best, the lowest of equals, and none where every one costs something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.search import ToolSearch
from retrievers.errors import BadInput
from retrievers.settings import RewriteFusion
from retrievers.types import Ranking, ToolId
from reward.metrics import judge, measure

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
GRID = (
    *(RewriteFusion("weighted", share) for share in SHARES),
    *(RewriteFusion("rrf", share) for share in SHARES[1:-1]),
    RewriteFusion("interleave", 0.0),
)
"""Raw alone is among them: a rewriter that only harms is left out. Interleaving with the raw query is not: its share is
no share."""
GATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of dev queries below the gate, the lowest gate first."""
DEPTH = 100


@dataclass(frozen=True, slots=True)
class Case:
    """The dev queries of one data set, with what was found for them."""

    search: ToolSearch
    utterances: Sequence[str]
    raw: Sequence[Ranking]
    lists: Sequence[Sequence[Ranking]]
    """For every query one list a line of its rewrite."""
    gold: Sequence[frozenset[ToolId]]

    def scores(self, fusion: RewriteFusion, metric: str) -> np.ndarray:
        """(queries,): the metric of every query, fused so."""
        fused = [
            self.search.fuse(utterance, first, lines, DEPTH, fusion).ids
            for utterance, first, lines in zip(self.utterances, self.raw, self.lists, strict=True)
        ]
        return measure(metric, judge(fused, self.gold))

    @property
    def tops(self) -> np.ndarray:
        """(queries,): the score of every raw query's first tool."""
        return np.array([ranking.scores[0] if ranking else -np.inf for ranking in self.raw])


@dataclass(frozen=True, slots=True)
class Tried:
    """One way to fuse and what dev says of it: the mean over data sets."""

    fusion: RewriteFusion
    score: float


def choose_fusion(cases: Sequence[Case], metric: str = "recall@5", grid: Sequence[RewriteFusion] = GRID) -> list[Tried]:
    """The chosen way first, then all others by their score. Every data set counts the same, however large."""
    if not cases or not all(case.gold for case in cases):
        raise BadInput("there are no dev queries to choose the raw query's share on")
    found = [[case.scores(fusion, metric) for case in cases] for fusion in grid]
    tried = [
        Tried(fusion, float(np.mean([each.mean() for each in row]))) for fusion, row in zip(grid, found, strict=True)
    ]
    best = max(range(len(grid)), key=lambda place: (tried[place].score, grid[place].raw))
    good = [place for place in range(len(grid)) if _no_worse(found[place], found[best])]
    chosen = max(good, key=lambda place: (grid[place].raw, tried[place].score))
    rest = sorted((each for each in tried if each is not tried[chosen]), key=lambda each: -each.score)
    alone = next((row for fusion, row in zip(grid, found, strict=True) if fusion.raw == 1), None)
    gated = _gated(tried[chosen], [case.tops for case in cases], found[chosen], alone)
    return [gated, *([tried[chosen]] if gated is not tried[chosen] else []), *rest]


def _gated(
    chosen: Tried, tops: Sequence[np.ndarray], fused: Sequence[np.ndarray], raw: Sequence[np.ndarray] | None
) -> Tried:
    """The chosen way behind its best gate, the lowest of equals; as it was where every gate costs something."""
    if raw is None or chosen.fusion.raw == 1:
        return chosen
    best: Tried | None = None
    for share in GATES:
        gate = float(np.mean([np.quantile(each, share) for each in tops]))
        rows = [np.where(top >= gate, before, after) for top, before, after in zip(tops, raw, fused, strict=True)]
        score = float(np.mean([each.mean() for each in rows]))
        if np.isfinite(gate) and score >= (chosen if best is None else best).score + (1e-12 if best else -1e-12):
            best = Tried(replace(chosen.fusion, sure=gate), score)
    return best or chosen


def _no_worse(these: Sequence[np.ndarray], those: Sequence[np.ndarray]) -> bool:
    """True where the mean over data sets falls short by one standard error of the difference at most."""
    differences = [that - this for this, that in zip(these, those, strict=True)]
    short = float(np.mean([each.mean() for each in differences]))
    variance = float(np.sum([each.var() / len(each) for each in differences])) / len(differences) ** 2
    return bool(short <= variance**0.5 + 1e-12)
