"""Approximate search by inner product, for segments too large to search exactly: faiss HNSW."""

from __future__ import annotations

import faiss
import numpy as np

LINKS = 32
BUILD_EFFORT = 200  # candidates looked at for every vector's links
SEARCH_EFFORT = 256  # candidates looked at per search; more is slower and closer to exact


def build(vectors: np.ndarray, links: int = LINKS, effort: int = BUILD_EFFORT) -> np.ndarray:
    """An HNSW graph over unit vectors, as bytes."""
    graph = faiss.IndexHNSWFlat(vectors.shape[1], links, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = effort
    graph.add(np.ascontiguousarray(vectors, dtype=np.float32))
    data: np.ndarray = faiss.serialize_index(graph)
    return data


class HnswGraph:
    """A graph in memory, searched among its live rows."""

    def __init__(self, data: np.ndarray, live: np.ndarray, effort: int = SEARCH_EFFORT) -> None:
        self._graph = faiss.deserialize_index(np.array(data))
        self._effort = effort
        self._size = int(live.sum())
        self._selector = None if live.all() else faiss.IDSelectorBatch(np.flatnonzero(live).astype(np.int64))

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(queries, k) rows and scores; row -1 means no result."""
        k = max(1, min(k, self._size))
        settings = faiss.SearchParametersHNSW(  # type: ignore[attr-defined]
            efSearch=max(self._effort, 2 * k), sel=self._selector
        )
        scores, rows = self._graph.search(np.ascontiguousarray(queries, dtype=np.float32), k, params=settings)
        return rows, scores
