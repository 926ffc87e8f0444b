"""MassTool's retriever: folds a query and its neighbours into one vector, and detects whether a tool is needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from retrievers.dense.encoder import Encoder
from retrievers.dense.retriever import Dense, search_texts
from retrievers.masstool.artifacts import Artifacts
from retrievers.masstool.model import Heads
from retrievers.masstool.pool import Pool
from retrievers.rows import Rows
from retrievers.text import clean
from retrievers.types import Ranking

BATCH_SIZE = 1024


class ConfirmedVotes:
    """Votes of confirmed queries, with a weight that training does not change."""

    def __init__(self, pool: Pool, heads: Heads, scale: float) -> None:
        self._pool, self._heads, self._scale = pool, heads, scale

    def __call__(self, queries: np.ndarray) -> torch.Tensor | float:
        """Addition to the queries' vectors; 0 where no query was confirmed."""
        if not self._pool.live.any():
            return 0.0
        pool, heads = self._pool, self._heads
        near = pool.nearest(queries, heads.settings.neighbours)
        searched = heads.search_neighbours(torch.from_numpy(queries), near, pool.keys, pool.view, pool.tools)
        return self._scale * heads.votes(searched)


class MassTool:
    """Folds a query and its neighbours into one vector, and searches the tools with it."""

    def __init__(
        self, encoder: Encoder, dense: Dense, artifacts: Artifacts, pool: Pool, confirmed: ConfirmedVotes, rows: Rows
    ) -> None:
        self._encoder, self._dense, self._artifacts, self._pool = encoder, dense, artifacts, pool
        self._confirmed = confirmed
        self._has_tools, self.fingerprint = bool(rows.live.any()), dense.fingerprint

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        if not self._has_tools:
            return [Ranking()] * len(queries)
        return search_texts(
            self._encoder, queries, lambda encoded: self._dense.search_vectors(self.vectors(encoded), k)
        )

    @torch.no_grad()
    def vectors(self, encoded: np.ndarray) -> np.ndarray:
        """u(q) of encoded queries: the vector that is matched with every tool's."""
        heads, pool, parts = self._artifacts.heads, self._pool, []
        for start in range(0, len(encoded), BATCH_SIZE):
            batch = np.ascontiguousarray(encoded[start : start + BATCH_SIZE], dtype=np.float32)
            near = pool.nearest(batch, heads.settings.neighbours)
            folded = heads(torch.from_numpy(batch), near, pool.keys, pool.view, pool.tools, None)
            parts.append((folded.vectors + self._confirmed(batch)).numpy())
        return np.concatenate(parts)


class DetectingMassTool(MassTool):
    """A MassTool with a trained detector: a Detector as well as a Retriever."""

    @property
    def threshold(self) -> float:
        """Probability from which on a query needs a tool."""
        assert self._artifacts.threshold is not None
        return self._artifacts.threshold

    @torch.no_grad()
    def probabilities(self, queries: Sequence[str]) -> list[float]:
        """Probability that each query needs a tool; 0 for an empty one."""
        texts = {row: text for row, query in enumerate(queries) if (text := clean(query))}
        values = [0.0] * len(queries)
        if texts:
            words = list(texts.values())
            detected = self._artifacts.heads.detect(torch.from_numpy(self._encoder.queries(words)), words)
            for row, value in zip(texts, detected.tolist(), strict=True):
                values[row] = round(value, 6)
        return values
