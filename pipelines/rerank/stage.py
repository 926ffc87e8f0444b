"""The stage: scores of the first tools, the new order, and a probability per tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from retrievers.base import Reranker
from retrievers.calibration.evidence import EvidenceReader
from retrievers.calibration.logistic import Calibration
from retrievers.calibration.relevance import DIGITS
from retrievers.rerank.ordering import reorder, reranked_only
from retrievers.types import Ranking, ToolId

RerankFailure = Literal["not_finite"]
"""Why a list is in its first order. not_finite: the model's answer is no number."""
READER = EvidenceReader((None,))  # type: ignore[arg-type]
"""Reads score, mean score and rank of the reranked tools."""


@dataclass(frozen=True, slots=True)
class RerankedRanking:
    """A list in its new order, or in the first one if the reranker failed."""

    ranking: Ranking
    failure: RerankFailure | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RerankStage:
    """A reranker with its depth and weight."""

    model: Reranker
    top: int
    weight: float
    calibration: Calibration | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """Its description, for run folders and responses."""
    min_probability: float | None = None
    """The threshold that dev chose; used where a caller asks for it."""

    def rerank(
        self,
        queries: Sequence[str],
        rankings: Sequence[Ranking],
        fixed: Sequence[int],
        text: Callable[[ToolId], str],
    ) -> list[RerankedRanking]:
        """Rerank lists whose first `fixed` tools stay in front. Errors of the model are raised."""
        ids = [ranking.ids[kept : kept + self.top] for ranking, kept in zip(rankings, fixed, strict=True)]
        rows = [row for row, tools in enumerate(ids) if tools and self.weight]
        results = [RerankedRanking(ranking) for ranking in rankings]
        scores = self.model.score([queries[row] for row in rows], [[text(tool) for tool in ids[row]] for row in rows])
        for row, values in zip(rows, scores, strict=True):
            if np.isfinite(values).all():
                results[row] = RerankedRanking(self._order(queries[row], rankings[row], values, fixed[row]))
            else:
                results[row] = RerankedRanking(rankings[row], "not_finite")
        return results

    def _order(self, query: str, first: Ranking, scores: np.ndarray, fixed: int) -> Ranking:
        order = reorder(first, scores, self.weight, fixed)
        if self.calibration is None:
            return order
        end = fixed + len(scores)
        known = dict(zip(first.ids, first.probabilities, strict=False))
        values = read_evidence(query, order.ids[fixed:end], first.ids[fixed:end], scores)
        read = self.calibration.probabilities(values).round(DIGITS).tolist()
        rest = (known.get(tool, 0.0) for tool in order.ids[end:])
        return replace(order, probabilities=(*(1.0 for _ in range(fixed)), *read, *rest))


def read_evidence(query: str, order: Sequence[ToolId], candidates: Sequence[ToolId], scores: np.ndarray) -> np.ndarray:
    """(tools, columns): evidence for the reranked tools in their new order."""
    ranking = Ranking(tuple(order), (0.0,) * len(order), parts=(reranked_only(candidates, scores),))
    [evidence] = READER.read([query], [ranking])
    return evidence
