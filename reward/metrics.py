"""The retrieval metrics, one definition each. Everything that is reported or rewarded comes through here.

A ranking is judged once, into a row of hits: True where a rank holds a gold tool. Every metric is then a pure function
of the hits (queries, ranks), the number of gold tools (queries,) and k, vectorized over queries:

>>> judged = judge([["a", "x", "b"]], [{"a", "b"}], depth=3)
>>> measure("recall@2", judged).tolist(), measure("comp@3", judged).tolist(), measure("mrr", judged).tolist()
([0.5], [1.0], [1.0])
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

DEPTH = 100
"""Ranks that are judged; MRR looks no further."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Rankings, compared with gold."""

    hits: np.ndarray
    """(queries, ranks) of bool"""
    gold: np.ndarray
    """(queries,): number of gold tools, never 0"""


def judge(rankings: Sequence[Sequence[Hashable]], gold: Sequence[Collection[Hashable]], depth: int = DEPTH) -> Judged:
    """Marks gold tools in the first `depth` ranks. A query without gold has no score and is refused."""
    hits = np.zeros((len(rankings), depth), dtype=bool)
    sizes = np.zeros(len(rankings), dtype=np.int64)
    for row, (ranking, wanted) in enumerate(zip(rankings, gold, strict=True)):
        unique = set(wanted)
        if not unique:
            raise ValueError(f"query {row} has no gold tool; it cannot be scored")
        head = list(ranking[:depth])
        if len(set(head)) < len(head):
            raise ValueError(f"the ranking of query {row} holds a tool twice")
        sizes[row] = len(unique)
        hits[row, : len(head)] = [tool in unique for tool in head]
    return Judged(hits, sizes)


def recall_at_k(judged: Judged, k: int) -> np.ndarray:
    """Share of gold tools in the top k."""
    recall: np.ndarray = judged.hits[:, :k].sum(axis=1) / judged.gold
    return recall


def comp_at_k(judged: Judged, k: int) -> np.ndarray:
    """1 where all gold tools are in the top k (completeness, COLT)."""
    complete: np.ndarray = judged.hits[:, :k].sum(axis=1) == judged.gold
    return complete.astype(np.float64)


def ndcg_at_k(judged: Judged, k: int) -> np.ndarray:
    """Discounted gain over the ideal, which counts every gold tool that fits into k ranks."""
    score: np.ndarray = _gain(judged, k) / _ideal(np.minimum(judged.gold, k), k)
    return score


def ndcg_toolgen_at_k(judged: Judged, k: int) -> np.ndarray:
    """NDCG as in ToolGen's and ToolWeaver's tables: the ideal counts only gold tools that were retrieved.

    One of two gold tools at rank 1 scores 1.0 here and 0.61 by the standard. For comparison only.
    """
    retrieved = judged.hits[:, :k].sum(axis=1)
    gain = _gain(judged, k)
    score: np.ndarray = np.divide(gain, _ideal(retrieved, k), out=np.zeros_like(gain), where=retrieved > 0)
    return score


def rank_at_k(judged: Judged, k: int) -> np.ndarray:
    """Linear gain over the ideal: a gold tool is worth 1 at the top, a half after k ranks, 0 at the last.

    For rewards: it distinguishes a rewrite that lifts a tool from rank 90 to 20 from one that does nothing, where
    metrics of the top k see no difference.
    """
    depth = judged.hits.shape[1]
    ranks = np.arange(depth)
    beyond = 0.5 * (depth - 1 - ranks) / max(1, depth - k)
    worth = np.where(ranks < k, 1.0 - 0.5 * ranks / k, beyond)
    ideal = np.cumsum(worth)[np.minimum(judged.gold, depth) - 1]
    score: np.ndarray = (judged.hits @ worth) / ideal
    return score


def mrr(judged: Judged) -> np.ndarray:
    """1 / rank of the first gold tool; 0 where there is none."""
    first: np.ndarray = judged.hits.argmax(axis=1)  # 0 where there is no hit: masked below
    values: np.ndarray = np.where(judged.hits.any(axis=1), 1.0 / (first + 1), 0.0)
    return values


def _discounts(k: int) -> np.ndarray:
    discounts: np.ndarray = 1.0 / np.log2(np.arange(k) + 2.0)
    return discounts


def _gain(judged: Judged, k: int) -> np.ndarray:
    head = judged.hits[:, :k]
    gain: np.ndarray = head @ _discounts(head.shape[1])
    return gain


def _ideal(count: np.ndarray, k: int) -> np.ndarray:
    """The gain of `count` gold tools at the first ranks."""
    ideal: np.ndarray = np.concatenate([[0.0], np.cumsum(_discounts(k))])[count]
    return ideal


AT_K: dict[str, Callable[[Judged, int], np.ndarray]] = {
    "recall": recall_at_k,
    "ndcg": ndcg_at_k,
    "comp": comp_at_k,
    "ndcg_toolgen": ndcg_toolgen_at_k,
    "rank": rank_at_k,
}


def parse_metric(name: str) -> tuple[str, int | None]:
    """`recall@5` -> ("recall", 5); `mrr` -> ("mrr", None)."""
    match = re.fullmatch(r"(\w+)@([1-9]\d*)", name)
    if match and match[1] in AT_K:
        return match[1], int(match[2])
    if name == "mrr":
        return name, None
    raise ValueError(f"no metric {name!r}; known are mrr and, with @K, {', '.join(AT_K)}")


def measure(name: str, judged: Judged) -> np.ndarray:
    """The values (queries,) of a metric by its name."""
    metric, k = parse_metric(name)
    if k is None:
        return mrr(judged)
    if k > judged.hits.shape[1]:
        raise ValueError(f"{name} looks deeper than the {judged.hits.shape[1]} ranks that were judged")
    return AT_K[metric](judged, k)


def measure_rankings(
    names: Sequence[str], rankings: Sequence[Sequence[Hashable]], gold: Sequence[Collection[Hashable]]
) -> dict[str, np.ndarray]:
    """The values (queries,) of several metrics by their names."""
    judged = judge(rankings, gold)
    return {name: measure(name, judged) for name in names}
