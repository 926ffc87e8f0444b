"""Evidence that a request needs the tools of a ranking, as numbers.

Of every retriever that took part: the tool's score, and the mean score of its first ten tools, because a score means
little where many tools have it. BM25 sums over words, so that its score is also given as the share of the highest
possible one. Last, the tool's rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retrievers.base import BoundsScores, Retriever
from retrievers.types import Ranking, ToolId

HEAD = 10
"""Tools that the mean is of, and ranks that a calibration is fitted on."""


@dataclass(frozen=True, slots=True)
class EvidenceReader:
    """Computes the evidence for rankings of one retriever."""

    parts: tuple[Retriever, ...]
    """The retriever itself, or the parts of a hybrid."""

    @property
    def rising(self) -> list[bool]:
        """Per column, True where more must never make a tool less probable."""
        columns = [[True, True, False] if isinstance(part, BoundsScores) else [True, False] for part in self.parts]
        return [*(column for part in columns for column in part), True]

    def read(self, queries: Sequence[str], rankings: Sequence[Ranking]) -> list[np.ndarray]:
        """Per query, an array (tools, columns)."""
        unbounded = [None] * len(queries)
        limits = [part.max_scores(queries) if isinstance(part, BoundsScores) else unbounded for part in self.parts]
        return [self._read(ranking, row) for ranking, row in zip(rankings, zip(*limits, strict=True), strict=True)]

    def _read(self, ranking: Ranking, limits: Sequence[float | None]) -> np.ndarray:
        if not ranking:
            return np.empty((0, len(self.rising)))
        lists = zip(ranking.parts or (ranking,), limits, strict=True)
        columns = [column for part, limit in lists for column in _columns(part, ranking.ids, limit)]
        return np.array([*columns, -np.log(np.arange(1, len(ranking) + 1))]).T


def _columns(part: Ranking, tools: Sequence[ToolId], limit: float | None) -> list[np.ndarray]:
    """Evidence from one retriever; a tool that it does not list has its last score, or 0 where scores are bounded."""
    missing = part.scores[-1] if part and limit is None else 0.0
    if part.ids[: len(tools)] == tuple(tools):
        scores = np.array(part.scores[: len(tools)], dtype=np.float64)
    else:
        known = dict(zip(part.ids, part.scores, strict=True))
        scores = np.array([known.get(tool, missing) for tool in tools], dtype=np.float64)
    head = part.scores[:HEAD]
    mean = np.full(len(tools), sum(head) / max(1, len(head)))
    if limit is None:
        return [scores, mean]
    return [np.log1p(scores), scores / max(limit, 1e-9), np.log1p(mean)]
