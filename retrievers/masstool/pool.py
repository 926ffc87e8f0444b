"""The pool: queries whose tools are known, from training and from confirmation, and the search for near ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from retrievers.masstool.artifacts import Pair
from retrievers.masstool.near_copies import NearCopies, copy_features
from retrievers.masstool.serving.pool_graph import PoolGraph, PoolNeighbours
from retrievers.types import ToolId

SPARE = 32
"""Neighbours searched beyond those wanted, so that near copies can be left out."""


class Pool:
    """Pool queries over the tools of one version of an index."""

    def __init__(
        self,
        keys: np.ndarray,
        pairs: Sequence[Pair],
        rows: Mapping[ToolId, int],
        signals: Callable[[list[int]], np.ndarray],
        replaced: Collection[str] = (),
    ) -> None:
        """`rows`: the live tools; `signals`: returns the signals of rows; `replaced`: queries that no longer count.

        A removed tool loses its edges, and a query without edges is no neighbour of any other.
        """
        gold = [
            [rows[tool] for tool in tools if tool in rows] if query not in replaced else [] for query, tools in pairs
        ]
        used = sorted({row for tools in gold for row in tools})
        index = {row: position for position, row in enumerate(used)}
        self.keys = np.ascontiguousarray(keys, np.float32)
        self.live = np.fromiter((bool(tools) for tools in gold), bool, len(gold))
        self.graph = PoolGraph([[index[row] for row in tools] for tools in gold], signals(used))
        self._used = used
        self._copies = NearCopies([query for query, _ in pairs])
        self._hnsw: Any = None

    def tools(self, row: int) -> list[int]:
        """Rows of the live tools that a pool query needed."""
        return [self._used[position] for position in self.graph.tools(row).tolist()]

    def use_graph(self, data: np.ndarray) -> None:
        """Search by an HNSW graph from now on."""
        from retrievers.dense.ann import HnswGraph

        if self.live.any():
            self._hnsw = HnswGraph(data, self.live)

    def nearest_but_copies(self, queries: np.ndarray, count: int, utterances: Sequence[str]) -> PoolNeighbours:
        """Nearest live queries that are no near copies of the utterances, one per query."""
        features, size = list(map(copy_features, utterances)), int(self.live.sum())
        shape = (len(queries), min(count, max(1, size)))
        rows, cosines, valid = np.zeros(shape, np.int64), np.zeros(shape, np.float32), np.zeros(shape, bool)
        open_rows, searched = np.arange(len(queries)), count + SPARE
        while len(open_rows):  # those with many copies are searched again, deeper
            near = self.nearest(queries[open_rows], searched)
            unfinished = []
            for number, query in enumerate(open_rows):
                columns = [
                    column
                    for column, row in enumerate(near.rows[number].tolist())
                    if near.valid[number, column] and not self._copies.is_copy(row, features[query])
                ][:count]
                if len(columns) < count and searched < size:
                    unfinished.append(query)
                part = slice(0, len(columns))
                rows[query, part], valid[query, part] = near.rows[number, columns], True
                cosines[query, part] = near.cosines[number, columns]
            open_rows, searched = np.array(unfinished, np.int64), 4 * searched
        return PoolNeighbours(rows, cosines, valid)

    def nearest(self, queries: np.ndarray, count: int) -> PoolNeighbours:
        """Nearest live queries of the pool."""
        live = np.flatnonzero(self.live)
        if not len(live):
            none = np.zeros((len(queries), 1), np.float32)
            return PoolNeighbours(none.astype(np.int64), none, none > 0)
        if self._hnsw is not None:
            rows, cosines = self._hnsw.search(queries, count)
        else:
            keys = self.keys
            scores = queries @ (keys if len(live) == len(keys) else keys[live]).T
            count = min(count, len(live))
            best = np.argpartition(-scores, count - 1, axis=1)[:, :count]
            rows, cosines = live[best], np.take_along_axis(scores, best, axis=1)
        # Of equal cosines the first of the pool, so that the batch size does not matter.
        order = np.lexsort((rows, -np.round(cosines, 6)), axis=1)
        rows, cosines = np.take_along_axis(rows, order, axis=1), np.take_along_axis(cosines, order, axis=1)
        valid = rows >= 0
        return PoolNeighbours(np.where(valid, rows, 0), np.where(valid, cosines, 0).astype(np.float32), valid)
