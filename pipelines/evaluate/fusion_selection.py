"""Choose on dev how the raw query and its rewrite are fused, with caution.

Of all fusions that are at most one standard error of the difference worse than the best one on dev, take the one that
gives the raw query the largest share: a gain that may be chance is not worth the risk of harm.

Then choose a gate: a raw query whose first tool scores at least that much keeps its ranking, and a server need not call
the rewriter. The best gate on dev is taken, the lowest of equals, and none if every gate costs something.
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
    *(RewriteFusion("add", share) for share in SHARES[1:-1]),
    RewriteFusion("interleave", 0.0),
)
"""Includes the raw query alone, so that a harmful rewriter is left out."""
GATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of dev queries below the gate, the lowest gate first."""
DEPTH = 100


@dataclass(frozen=True, slots=True)
class FusionDevSet:
    """The dev queries of one data set, with the rankings to be fused."""

    search: ToolSearch
    utterances: Sequence[str]
    raw: Sequence[Ranking]
    line_rankings: Sequence[Sequence[Ranking]]
    """Per query, one ranking per line of its rewrite."""
    gold: Sequence[frozenset[ToolId]]

    def scores(self, fusion: RewriteFusion, metric: str) -> np.ndarray:
        """(queries,): the metric of every query under this fusion."""
        fused = [
            self.search.fuse(utterance, raw, lines, DEPTH, fusion).ids
            for utterance, raw, lines in zip(self.utterances, self.raw, self.line_rankings, strict=True)
        ]
        return measure(metric, judge(fused, self.gold))

    @property
    def top_scores(self) -> np.ndarray:
        """(queries,): the score of every raw query's first tool."""
        return np.array([ranking.scores[0] if ranking else -np.inf for ranking in self.raw])


@dataclass(frozen=True, slots=True)
class FusionScore:
    """A fusion and its score on dev: the mean over data sets."""

    fusion: RewriteFusion
    score: float


def choose_fusion(
    dev_sets: Sequence[FusionDevSet], metric: str = "recall@5", grid: Sequence[RewriteFusion] = GRID
) -> list[FusionScore]:
    """The chosen fusion first, then all others by score. Data sets weigh the same, regardless of their size."""
    if not dev_sets or not all(dev.gold for dev in dev_sets):
        raise BadInput("there are no dev queries to choose the raw query's share on")
    values = [[dev.scores(fusion, metric) for dev in dev_sets] for fusion in grid]
    scores = [FusionScore(fusion, _mean(rows)) for fusion, rows in zip(grid, values, strict=True)]
    best = max(range(len(grid)), key=lambda i: (scores[i].score, grid[i].raw))
    good = [i for i in range(len(grid)) if _no_worse(values[i], values[best])]
    chosen = max(good, key=lambda i: (grid[i].raw, scores[i].score))
    rest = sorted((score for score in scores if score is not scores[chosen]), key=lambda score: -score.score)
    raw = next((rows for fusion, rows in zip(grid, values, strict=True) if fusion.raw == 1), None)
    gated = _gated(scores[chosen], [dev.top_scores for dev in dev_sets], values[chosen], raw)
    return [gated, *([scores[chosen]] if gated is not scores[chosen] else []), *rest]


def _mean(rows: Sequence[np.ndarray]) -> float:
    return float(np.mean([row.mean() for row in rows]))


def _gated(
    chosen: FusionScore, tops: Sequence[np.ndarray], fused: Sequence[np.ndarray], raw: Sequence[np.ndarray] | None
) -> FusionScore:
    """The chosen fusion with its best gate; without one if every gate costs something."""
    if raw is None or chosen.fusion.raw == 1:
        return chosen
    best: FusionScore | None = None
    for share in GATES:
        gate = float(np.mean([np.quantile(top, share) for top in tops]))
        rows = [np.where(top >= gate, before, after) for top, before, after in zip(tops, raw, fused, strict=True)]
        score = _mean(rows)
        if np.isfinite(gate) and score >= (chosen if best is None else best).score + (1e-12 if best else -1e-12):
            best = FusionScore(replace(chosen.fusion, skip_rewrite_above=gate), score)
    return best or chosen


def _no_worse(these: Sequence[np.ndarray], those: Sequence[np.ndarray]) -> bool:
    """True if the mean over data sets falls short by at most one standard error of the difference."""
    differences = [that - this for this, that in zip(these, those, strict=True)]
    variance = float(np.sum([row.var() / len(row) for row in differences])) / len(differences) ** 2
    return bool(_mean(differences) <= variance**0.5 + 1e-12)
