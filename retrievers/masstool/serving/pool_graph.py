"""The graph of a pool's queries and their tools, with the propagation weights of graph.py, for searching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from scipy.sparse import csr_matrix

from retrievers.masstool.settings import SceneView


@dataclass(frozen=True, slots=True)
class PoolNeighbours:
    """Nearest pool queries of some queries."""

    rows: np.ndarray
    """(queries, neighbours) rows of the pool"""
    cosines: np.ndarray
    valid: np.ndarray
    """False where there is no neighbour"""


class PoolGraph:
    """Signals that reach a query from the tools of its neighbours. Every edge of the pool is visible."""

    def __init__(self, gold: Sequence[Sequence[int]], signals: np.ndarray) -> None:
        """`gold`: rows of each query's tools, maybe none; `signals`: vectors that tools contribute, by row."""
        lengths = np.fromiter(map(len, gold), np.int64, len(gold))
        width = int(lengths.max(initial=1)) or 1
        is_edge = np.arange(width) < lengths[:, None]
        self.signals = np.concatenate([signals, np.zeros((1, signals.shape[1]), np.float32)])
        self._tools = np.full((len(gold), width), len(signals), np.int32)
        self._tools[is_edge] = np.fromiter(chain.from_iterable(gold), np.int32, lengths.sum())
        degrees = np.maximum(1, np.bincount(self._tools[is_edge], minlength=len(signals) + 1))
        counts = np.maximum(1, lengths)[:, None]
        known: dict[tuple[int, ...], int] = {}
        scenes = np.fromiter((known.setdefault(tuple(sorted(rows)), len(known)) for rows in gold), np.int64, len(gold))
        queries = np.bincount(scenes[lengths > 0], minlength=len(known))
        by_tools = is_edge / np.sqrt(counts * degrees[self._tools])
        self._weights = np.stack([by_tools, is_edge / counts]).astype(np.float32)
        self._scene_weights = ((lengths > 0) / np.sqrt(np.maximum(1, queries))[scenes]).astype(np.float32)

    def tools(self, row: int) -> np.ndarray:
        """Positions of the tools of one pool query among the signals."""
        tools = self._tools[row]
        needed: np.ndarray = tools[tools < len(self.signals) - 1]
        return needed

    def weights(self, rows: np.ndarray, scene_view: SceneView) -> np.ndarray:
        """(2, *rows, max gold tools) weights of the edges of these queries, by tool view and scene view."""
        weights = self._weights[:, rows]
        if scene_view == "mean":
            return weights
        return np.stack([weights[0], weights[1] * self._scene_weights[rows][..., None]])

    def to_queries(self, rows: np.ndarray, scene: bool, scene_view: SceneView = "mean") -> np.ndarray:
        """(*rows, dimensions) sum of the signals of these pool queries' tools, by one view."""
        weights = self.weights(rows, scene_view)[int(scene)]
        return self._sum(self._tools[rows], weights).reshape(*rows.shape, -1)

    def to_neighbours(self, rows: np.ndarray, attention: np.ndarray, scene_view: SceneView) -> np.ndarray:
        """(2, queries, dimensions) signals that reach queries through their neighbours, by both views."""
        weights = self.weights(rows, scene_view) * attention[:, :, None]
        tools = np.broadcast_to(self._tools[rows], weights.shape)
        size = weights.shape[2] * weights.shape[3]
        return self._sum(tools.reshape(-1, size), weights.reshape(-1, size)).reshape(2, len(rows), -1)

    def _sum(self, tools: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """A weighted sum of signals per row of tools."""
        width = tools.shape[-1]
        starts = np.arange(0, tools.size + 1, width, dtype=np.int32)
        table = csr_matrix((weights.ravel(), tools.ravel(), starts), (len(starts) - 1, len(self.signals)))
        sums: np.ndarray = table @ self.signals
        return sums
