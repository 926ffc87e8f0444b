"""Approximate search by inner product for segments too large to look at whole: faiss HNSW."""

from __future__ import annotations

import faiss
import numpy as np


def build(vectors: np.ndarray, links: int, effort: int = 200) -> np.ndarray:
    """An HNSW graph over unit vectors, as bytes. `effort`: candidates looked at for every vector's links."""
    graph = faiss.IndexHNSWFlat(vectors.shape[1], links, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = effort
    graph.add(np.ascontiguousarray(vectors, dtype=np.float32))
    data: np.ndarray = faiss.serialize_index(graph)
    return data


class Graph:
    """A graph that can be asked."""

    def __init__(self, data: np.ndarray, live: np.ndarray, effort: int) -> None:
        self._graph = faiss.deserialize_index(np.array(data))
        self._effort = effort
        self._size = int(live.sum())
        self._selector = None if live.all() else faiss.IDSelectorBatch(np.flatnonzero(live).astype(np.int64))

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(queries, k) rows and scores; a row of -1 stands for nothing found."""
        k = max(1, min(k, self._size))
        settings = faiss.SearchParametersHNSW(  # type: ignore[attr-defined]
            efSearch=max(self._effort, 2 * k), sel=self._selector
        )
        scores, rows = self._graph.search(np.ascontiguousarray(queries, dtype=np.float32), k, params=settings)
        return rows, scores
