"""MassTool's retriever: folds a query and its neighbours into one vector, and detects whether a tool is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from retrievers.base import RankingParts
from retrievers.dense.encoder import Encoder
from retrievers.dense.retriever import Dense, search_texts
from retrievers.masstool.artifacts import Artifacts
from retrievers.masstool.pool import Pool
from retrievers.masstool.serving.heads import ServingHeads
from retrievers.masstool.serving.pool_graph import PoolNeighbours
from retrievers.rows import Rows
from retrievers.text import clean, tokens
from retrievers.types import Ranking

BATCH_SIZE = 1024
WITHOUT_VOTES = "without votes"
"""Name of the part that shows a ranking as it would be without earlier queries."""


class ConfirmedVotes:
    """Votes of confirmed queries, with a weight that training does not change."""

    def __init__(self, pool: Pool, heads: ServingHeads, scale: float) -> None:
        self._pool, self._heads, self._scale = pool, heads, scale

    @property
    def any(self) -> bool:
        """True if a query was confirmed."""
        return bool(self._pool.live.any())

    def voters(self, query: np.ndarray) -> list[list[int]]:
        """Rows of the tools of each confirmed query that votes on one query."""
        return voters(self._pool, self._heads, query)

    def __call__(self, queries: np.ndarray, utterances: Sequence[str] | None = None) -> np.ndarray | float:
        """Addition to the queries' vectors; 0 where no query was confirmed. Near copies of `utterances` do not vote."""
        if not self.any:
            return 0.0
        pool, heads = self._pool, self._heads
        near = find_neighbours(pool, queries, heads.settings.neighbours, utterances)
        searched = heads.search_neighbours(queries, near, pool.keys, pool.graph)
        return self._scale * heads.votes(searched)


class MassTool:
    """Folds a query and its neighbours into one vector, and searches the tools with it."""

    def __init__(
        self,
        encoder: Encoder,
        dense: Dense,
        artifacts: Artifacts,
        make_pool: Callable[[bool], Pool],
        confirmed: ConfirmedVotes,
        rows: Rows,
    ) -> None:
        """`make_pool(True)` makes the pool without dev queries."""
        self._encoder, self._dense, self._artifacts, self._make_pool = encoder, dense, artifacts, make_pool
        self._pool = make_pool(False)
        self._confirmed = confirmed
        self._ids, self._has_tools, self.fingerprint = rows.ids, bool(rows.live.any()), dense.fingerprint

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        if not self._has_tools:
            return [Ranking()] * len(queries)
        return search_texts(
            self._encoder, queries, lambda encoded: self._dense.search_vectors(self.vectors(encoded), k)
        )

    def ranking_parts(self, query: str, k: int) -> RankingParts:
        """The ranking without votes, where votes are an addition, and the votes; with k of 0 only these."""
        if not self._has_tools or not clean(query):
            return RankingParts()
        encoded = np.ascontiguousarray(self._encoder.queries([clean(query)]), dtype=np.float32)
        text = self._artifacts.heads.text_vectors(encoded) if k else None
        rankings = {} if text is None else {WITHOUT_VOTES: self._dense.search_vectors(text, k)[0]}
        neighbours = voters(self._pool, self._artifacts.heads, encoded) + self._confirmed.voters(encoded)
        return RankingParts(rankings, [[self._ids[row] for row in rows] for rows in neighbours])

    @property
    def has_votes(self) -> bool:
        heads = self._artifacts.heads
        return heads.adds_votes and (self._confirmed.any or (heads.uses_votes and bool(self._pool.live.any())))

    def search_without_votes(self, queries: Sequence[str], k: int) -> list[Ranking]:
        if not self._has_tools:
            return [Ranking()] * len(queries)

        def search(encoded: np.ndarray) -> list[Ranking]:
            text = self._artifacts.heads.text_vectors(np.ascontiguousarray(encoded, dtype=np.float32))
            assert text is not None
            return self._dense.search_vectors(text, k)

        return search_texts(self._encoder, queries, search)

    @property
    def remembers_queries(self) -> bool:
        return bool(self._artifacts.pairs) or self._confirmed.any

    def search_held_out(self, texts: Sequence[str], k: int, utterances: Sequence[str]) -> list[Ranking]:
        if not self._has_tools:
            return [Ranking()] * len(texts)
        owners = [utterance for text, utterance in zip(texts, utterances, strict=True) if clean(text)]
        return search_texts(
            self._encoder, texts, lambda encoded: self._dense.search_vectors(self.vectors(encoded, owners), k)
        )

    def learned(self, utterances: Sequence[str]) -> list[bool]:
        return [frozenset(tokens(utterance)) in self._learned for utterance in utterances]

    @cached_property
    def _learned(self) -> frozenset[frozenset[str]]:
        return frozenset(frozenset(tokens(query)) for query in self._artifacts.split_pool()[0])

    @cached_property
    def _held_out_pool(self) -> Pool:
        return self._make_pool(True)

    def vectors(self, encoded: np.ndarray, utterances: Sequence[str] | None = None) -> np.ndarray:
        """u(q) of encoded queries: the vector that is matched with every tool's.

        With `utterances`, one per query, near copies of them and dev queries do not vote.
        """
        heads, parts = self._artifacts.heads, []
        pool = self._pool if utterances is None else self._held_out_pool
        for start in range(0, len(encoded), BATCH_SIZE):
            batch = np.ascontiguousarray(encoded[start : start + BATCH_SIZE], dtype=np.float32)
            owners = None if utterances is None else utterances[start : start + BATCH_SIZE]
            near = find_neighbours(pool, batch, heads.settings.neighbours, owners)
            folded = heads.query_vectors(batch, near, pool.keys, pool.graph)
            parts.append(folded + self._confirmed(batch, owners))
        return np.concatenate(parts)


class DetectingMassTool(MassTool):
    """A MassTool with a trained detector: a Detector as well as a Retriever."""

    @property
    def threshold(self) -> float:
        """Probability from which on a query needs a tool."""
        assert self._artifacts.threshold is not None
        return self._artifacts.threshold

    def probabilities(self, queries: Sequence[str]) -> list[float]:
        """Probability that each query needs a tool; 0 for an empty one."""
        texts = {row: text for row, query in enumerate(queries) if (text := clean(query))}
        values = [0.0] * len(queries)
        if texts:
            words = list(texts.values())
            detected = self._artifacts.heads.detect(self._encoder.queries(words), words)
            for row, value in zip(texts, detected.tolist(), strict=True):
                values[row] = round(value, 6)
        return values


def find_neighbours(pool: Pool, queries: np.ndarray, count: int, utterances: Sequence[str] | None) -> PoolNeighbours:
    """Nearest queries of the pool, without near copies of `utterances`."""
    return pool.nearest(queries, count) if utterances is None else pool.nearest_but_copies(queries, count, utterances)


def voters(pool: Pool, heads: ServingHeads, query: np.ndarray) -> list[list[int]]:
    """Rows of the tools of each pool query that votes on one query."""
    if not heads.uses_votes or not pool.live.any():
        return []
    near = pool.nearest(query, heads.settings.neighbours)
    return [pool.tools(row) for row in near.rows[0, heads.voters(near)[0]].tolist()]
