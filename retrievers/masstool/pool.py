"""The pool: queries whose tools are known, from training and from confirmation, and which of them are near."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from retrievers.masstool.artifacts import Pair
from retrievers.masstool.graph import View, make_edges, view
from retrievers.masstool.model import Near, Tools
from retrievers.types import ToolId


class Signals(Protocol):
    """What every row of an index tells its queries."""

    def __getitem__(self, rows: list[int], /) -> np.ndarray: ...


class Pool:
    """Queries of the pool over the tools of one version of an index."""

    def __init__(
        self,
        keys: np.ndarray,
        pairs: Sequence[Pair],
        rows: Mapping[ToolId, int],
        signals: Signals,
        replaced: Collection[str] = (),
    ) -> None:
        """`rows` are the live tools', `signals` one a row of the index, `replaced` queries that count no more.

        Tools that are gone take their edges with them, and a query that has none left is nobody's neighbour.
        """
        gold = [
            [rows[tool] for tool in tools if tool in rows] if query not in replaced else [] for query, tools in pairs
        ]
        used = sorted({row for each in gold for row in each})
        small = {row: place for place, row in enumerate(used)}
        self.keys = torch.from_numpy(np.array(keys, dtype=np.float32))
        self.live = np.fromiter((bool(each) for each in gold), bool, len(gold))
        self.seen: View = view(make_edges([[small[row] for row in each] for each in gold], len(used)))
        held = np.zeros((len(used) + 1, keys.shape[1]), np.float32)
        held[: len(used)] = signals[used]
        self.tools = Tools(*(torch.from_numpy(held),) * 3)
        self._graph: object | None = None

    def with_graph(self, data: np.ndarray, effort: int) -> None:
        """Has it searched by a graph."""
        from retrievers.dense.ann import Graph

        if self.live.any():
            self._graph = Graph(data, self.live, effort)

    def near(self, queries: np.ndarray, count: int) -> Near:
        """The nearest live queries of the pool."""
        places = np.flatnonzero(self.live)
        if not len(places):
            none = np.zeros((len(queries), 1))
            return Near(torch.from_numpy(none).long(), torch.from_numpy(none).float(), torch.from_numpy(none) > 0)
        if self._graph is not None:
            rows, cosines = self._graph.search(queries, count)  # type: ignore[attr-defined]
        else:
            keys = self.keys.numpy()
            scores = queries @ (keys if len(places) == len(keys) else keys[places]).T
            most = min(count, len(places))
            best = np.argpartition(-scores, most - 1, axis=1)[:, :most]
            rows, cosines = places[best], np.take_along_axis(scores, best, axis=1)
        # Of equal cosines the first of the pool: how a batch was cut must not decide.
        order = np.lexsort((rows, -np.round(cosines, 6)), axis=1)
        rows, cosines = np.take_along_axis(rows, order, axis=1), np.take_along_axis(cosines, order, axis=1)
        valid = rows >= 0
        return Near(
            torch.from_numpy(np.where(valid, rows, 0)),
            torch.from_numpy(np.where(valid, cosines, 0).astype(np.float32)),
            torch.from_numpy(valid),
        )
