"""A reranker's scores of first lists: all depths, weights, metrics and calibrations follow from them."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from pipelines.train.rerank.sets import Lists, RerankSet
from retrievers.base import Reranker
from retrievers.kind import Context
from retrievers.progress import Progress
from retrievers.rerank.cached import CachedReranker
from retrievers.rerank.ordering import reorder
from retrievers.types import Ranking
from reward.metrics import measure_rankings

METRICS = ("recall@5", "ndcg@5", "comp@5")
CHOICE = "recall@5"
CHUNK = 64
"""Queries per call of the model."""


@dataclass(frozen=True)
class ScoredLists:
    """First lists of one retriever in one set, with the reranker's scores."""

    scores: np.ndarray
    """(queries, ranks): of the tools in their first order; nan behind the last."""
    needed: np.ndarray
    """(queries, ranks): true for tools that the query needs."""
    gold: np.ndarray
    """(queries,): number of tools that the query needs."""
    fixed: np.ndarray
    """(queries,): tools in front that the query names."""
    seconds: np.ndarray
    """(): seconds of the model for all queries; nan where another retriever's list was read before."""

    def __len__(self) -> int:
        return len(self.gold)

    @cached_property
    def lengths(self) -> np.ndarray:
        """(queries,): tools of every list."""
        lengths: np.ndarray = (~np.isnan(self.scores)).sum(axis=1)
        return lengths

    def order(self, query: int, top: int, weight: float, without: frozenset[int] = frozenset()) -> list[int]:
        """First ranks of the tools in their new order; `without` hides some."""
        ranks = [rank for rank in range(int(self.lengths[query])) if rank not in without]
        fixed = sum(rank < self.fixed[query] for rank in ranks)
        first = Ranking(tuple(f"{rank:03}" for rank in ranks), tuple(-float(rank) for rank in range(len(ranks))))
        scores = self.scores[query, ranks[fixed : fixed + top]]
        return [int(tool) for tool in reorder(first, scores, weight, fixed).ids]

    @cached_property
    def _measured(self) -> dict[tuple[int, float], dict[str, np.ndarray]]:
        return {}

    def measure(self, top: int, weight: float) -> dict[str, np.ndarray]:
        """Metrics per query; kept, since each set is compared under what all the others choose."""
        if (top, weight) not in self._measured:
            self._measured[top, weight] = self._measure(top, weight)
        return self._measured[top, weight]

    def _measure(self, top: int, weight: float) -> dict[str, np.ndarray]:
        orders = [self.order(query, top, weight) for query in range(len(self))]
        gold = []
        for query in range(len(self)):
            ranks = set(np.flatnonzero(self.needed[query]).tolist())
            gold.append(ranks | {-1 - missing for missing in range(int(self.gold[query]) - len(ranks))})
        return measure_rankings(METRICS, orders, gold)


SetLists = dict[str, ScoredLists]
"""The retriever in words -> scored lists."""


def score_lists(
    model: Reranker, data: RerankSet, use: str, lists: Lists, tops: Sequence[int], context: Context
) -> SetLists:
    """Let the model read every list once, as deep as the deepest choice and below named tools."""
    queries, gold = data.examples[use].queries, data.examples[use].gold
    scored: SetLists = {}
    model = CachedReranker(model)  # lists of different retrievers share most of their tools
    for words, own in lists.items():
        depth = min(max(tops) + int(own.fixed.max(initial=0)), own.rows.shape[1])
        scores = np.full((len(queries), depth), np.nan)
        rows = [[row for row in line.tolist() if row >= 0] for line in own.rows[:, :depth]]
        began = time.perf_counter()
        with Progress(f"{data.name}: reranking {words}", len(queries), "queries", context.show_progress) as progress:
            for start in range(0, len(queries), CHUNK):
                part = range(start, min(start + CHUNK, len(queries)))
                texts = [[data.documents[row] for row in rows[query]] for query in part]
                for query, values in zip(part, model.score([queries[i] for i in part], texts), strict=True):
                    scores[query, : len(values)] = check_finite(values, data.name)
                progress.add(len(part))
        needed = [[row in set(gold[query]) for row in own.rows[query, :depth].tolist()] for query in range(len(rows))]
        scored[words] = ScoredLists(
            scores,
            np.array(needed, dtype=bool).reshape(len(queries), depth),
            np.array([len(tools) for tools in gold]),
            own.fixed,
            np.array(np.nan if scored else time.perf_counter() - began),
        )
    return scored


def check_finite(values: np.ndarray, name: str) -> np.ndarray:
    """The scores, if all are numbers: a failing model is no figure."""
    if not np.isfinite(values).all():
        raise FloatingPointError(f"the reranker answers no number on {name}; lower training.learning_rate")
    return values


def write_lists(path: Path, sets: Mapping[str, SetLists]) -> None:
    """Write scored lists, whole or not at all."""
    arrays = {
        f"{name}|{words}|{field.name}": getattr(own, field.name)
        for name, lists in sets.items()
        for words, own in lists.items()
        for field in fields(ScoredLists)
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    part = path.with_name(f".part-{path.name}")
    part.write_bytes(buffer.getvalue())
    os.replace(part, path)


def read_lists(path: Path) -> dict[str, SetLists]:
    """Scored lists by set and retriever."""
    sets: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            name, words, field = key.split("|")
            sets.setdefault(name, {}).setdefault(words, {})[field] = arrays[key]
    return {name: {words: ScoredLists(**own) for words, own in lists.items()} for name, lists in sets.items()}
