"""Trained heads of the authors' MassTool (`faithful: true`), for searching and detecting."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from retrievers.masstool.serving.arrays import softmax, unit_rows
from retrievers.masstool.serving.heads import VIEWS, ServingHeads, joint_vectors, weighted_sum
from retrievers.masstool.serving.pool_graph import PoolGraph, PoolNeighbours
from retrievers.masstool.settings import MassToolSettings


class FaithfulServingHeads(ServingHeads):
    """Sums six unit vectors; see faithful.py."""

    num_cosines: ClassVar[int] = 6
    has_sink_by_kind: ClassVar[bool] = False

    @staticmethod
    def detection_outputs() -> int:
        return 2

    def query_vectors(self, x: np.ndarray, near: PoolNeighbours, keys: np.ndarray, graph: PoolGraph) -> np.ndarray:
        modules, neighbours = self.settings.modules, self._with_free_vectors(keys, near.rows)
        attention = self._attend(x, near, keys[near.rows])
        info = np.maximum(self._layer("info", self._hidden(x)), 0)
        total, joint, by_view = np.zeros_like(x), list[np.ndarray](), list[np.ndarray]()
        for index, name in enumerate(VIEWS):
            values = neighbours + unit_rows(graph.to_queries(near.rows, name == "scene"))
            if modules.attention == "graph":
                attention = self._attend(x, near, values, name)
            searched = weighted_sum(attention, values) if modules.intent else x
            terms = [x] + ([searched] if modules.intent else [])
            if modules.transfer != "none":
                terms.append(self._joint_vectors(info, searched, index))
            total += np.sum([unit_rows(term) for term in terms], axis=0)
            joint, by_view = [*joint, terms[-1]], [*by_view, searched]
        return joint_vectors(x, by_view, joint) if modules.score == "joint" else total

    @property
    def adds_votes(self) -> bool:
        return False

    def _with_free_vectors(self, keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Vectors of pool queries with the free ones that they were trained with; those that joined later have none."""
        values: np.ndarray = keys[rows]
        free = self.state["queries"]
        known = rows < len(free)
        values[known] += free[rows[known]]
        return values

    def _probabilities(self, logits: np.ndarray) -> np.ndarray:
        return softmax(logits)[:, 1]


def serving_heads(settings: MassToolSettings) -> type[ServingHeads]:
    """Class of the heads for these settings."""
    return FaithfulServingHeads if settings.faithful else ServingHeads
