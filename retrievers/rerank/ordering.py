"""The order of a reranked list: ranks of the first order and of the reranker, fused.

A share of the first order stays, because it knows things that the reranker does not see, such as votes of earlier
queries. Only the first tools are read; the others follow in their first order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from retrievers.fusion import reciprocal_rank
from retrievers.types import Ranking, ToolId

RRF_K = 10.0
"""Constant of the reciprocal rank fusion, for lists of about twenty tools."""


def count_fixed(ranking: Ranking, named: Sequence[ToolId]) -> int:
    """Tools in front that the request names: they are not reranked."""
    return sum(1 for _ in takewhile(set(named).__contains__, ranking.ids))


def reranked_only(candidates: Sequence[ToolId], scores: np.ndarray) -> Ranking:
    """The candidates by the reranker's scores alone; of equals, the first order decides."""
    order = np.argsort(-scores, kind="stable").tolist()
    return Ranking(tuple(candidates[i] for i in order), tuple(float(scores[i]) for i in order))


def reorder(first: Ranking, scores: np.ndarray, weight: float, fixed: int = 0) -> Ranking:
    """Put the tools after the `fixed` ones, as many as there are scores, into a new order.

    `weight`: share of the reranker; 0 keeps the first order. The new order stays ahead of the tools that follow it.
    """
    end = fixed + len(scores)
    candidates = first.ids[fixed:end]
    if len(candidates) < 2 or not weight:
        return first
    lists = (reranked_only(candidates, scores), Ranking(candidates, first.scores[fixed:end]))
    order = reciprocal_rank(lists, len(candidates), (weight, 1 - weight), RRF_K)
    lowest = first.scores[min(end, len(first) - 1)]
    return Ranking(
        (*first.ids[:fixed], *order.ids, *first.ids[end:]),
        (*first.scores[:fixed], *(lowest + score for score in order.scores), *first.scores[end:]),
    )
