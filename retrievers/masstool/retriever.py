"""MassTool as it answers: a query and its neighbours folded into one vector, and whether a tool is needed at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from retrievers.dense.encoder import Encoder
from retrievers.dense.retriever import Dense
from retrievers.masstool.artifacts import Learned
from retrievers.masstool.model import Heads
from retrievers.masstool.pool import Pool
from retrievers.rows import Rows
from retrievers.text import clean
from retrievers.types import Ranking

AT_ONCE = 1024
"""Queries that are looked up together."""


class Confirmed:
    """Votes of confirmed queries. They count whatever training made of votes: somebody said so."""

    def __init__(self, pool: Pool, heads: Heads, scale: float) -> None:
        self._pool, self._heads, self._scale = pool, heads, scale

    def votes(self, queries: np.ndarray) -> torch.Tensor | float:
        """What they add to the queries' vectors; 0 where nothing was ever confirmed."""
        if not self._pool.live.any():
            return 0.0
        near = self._pool.near(queries, self._heads.settings.neighbours)
        pool, x = self._pool, torch.from_numpy(queries)
        return self._scale * self._heads.votes(self._heads.searched(x, near, pool.keys, pool.seen, pool.tools))


class MassTool:
    """Folds a query and its neighbours into one vector, and searches the tools with it."""

    def __init__(
        self, encoder: Encoder, dense: Dense, learned: Learned, pool: Pool, confirmed: Confirmed, rows: Rows
    ) -> None:
        self._encoder, self._dense, self._learned, self._pool = encoder, dense, learned, pool
        self._confirmed = confirmed
        self._anything, self.fingerprint = bool(rows.live.any()), dense.fingerprint

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        texts = [clean(query) for query in queries]
        asked = [place for place, text in enumerate(texts) if text]
        answers = [Ranking()] * len(texts)
        if asked and self._anything:
            vectors = self.vectors(self._encoder.queries([texts[place] for place in asked]))
            for place, ranking in zip(asked, self._dense.search_vectors(vectors, k), strict=True):
                answers[place] = ranking
        return answers

    @torch.no_grad()
    def vectors(self, encoded: np.ndarray) -> np.ndarray:
        """u(q) of encoded queries: the one vector that is matched with every tool's."""
        parts = []
        for start in range(0, len(encoded), AT_ONCE):
            some = np.ascontiguousarray(encoded[start : start + AT_ONCE], dtype=np.float32)
            near = self._pool.near(some, self._learned.heads.settings.neighbours)
            found = self._learned.heads(
                torch.from_numpy(some), near, self._pool.keys, self._pool.seen, self._pool.tools, None
            )
            parts.append((found.vectors + self._confirmed.votes(some)).numpy())
        return np.concatenate(parts)

    @torch.no_grad()
    def needs(self, queries: Sequence[str]) -> list[float]:
        """How likely each query needs a tool; an empty one does not."""
        texts = [clean(query) for query in queries]
        asked = [place for place, text in enumerate(texts) if text]
        found = [0.0] * len(texts)
        if asked:
            wanted = [texts[place] for place in asked]
            likely = self._learned.heads.likely(torch.from_numpy(self._encoder.queries(wanted)), wanted)
            for place, value in zip(asked, likely.tolist(), strict=True):
                found[place] = round(value, 6)
        return found


class DetectingMassTool:
    """One that was trained to tell whether a tool is needed: a Detector as well as a Retriever."""

    def __init__(self, inner: MassTool, threshold: float) -> None:
        self._inner, self.threshold, self.fingerprint = inner, threshold, inner.fingerprint

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        return self._inner.search(queries, k)

    def probabilities(self, queries: Sequence[str]) -> list[float]:
        return self._inner.needs(queries)
