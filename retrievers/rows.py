"""The rows of an opened index: which tool each row is, which are live, and how scores become a ranking."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from retrievers.types import Ranking, ToolId

FEW = 1_000
"""Rows that are brought into the order of their ids when they are found."""


class Rows:
    """All rows of all segments, in order, the dead ones included."""

    def __init__(self, ids: Sequence[ToolId], live: np.ndarray) -> None:
        self.ids = list(ids)
        self.live = live
        self.dead = np.flatnonzero(~live)

    def best(self, scores: np.ndarray, k: int, floor: float = -np.inf, digits: int = 6) -> Ranking:
        """The k best rows above the floor. `scores` (rows,) is overwritten where rows are dead.

        Scores are compared after rounding: the last bits depend on how a batch was cut, and must not decide a place.
        """
        scores[self.dead] = -np.inf
        found = np.flatnonzero(scores > floor)
        if len(found) > k:
            held = scores[found]
            edge = np.partition(held, len(held) - k)[len(held) - k]
            found = found[held >= edge - 10.0**-digits]
        return self.ranking(found, scores[found], k, digits)

    def ranking(self, rows: np.ndarray, scores: np.ndarray, k: int, digits: int = 6) -> Ranking:
        """A ranking of the given rows."""
        rounded = np.round(scores.astype(np.float64), digits)
        # Ties are broken by id. To sort all ids costs an opened index more than it costs searches to sort a few.
        order = self._order[rows] if len(rows) > FEW else _order_of([self.ids[row] for row in rows])
        chosen = np.lexsort((order, -rounded))[:k]
        return Ranking(tuple(self.ids[row] for row in rows[chosen]), tuple(rounded[chosen].tolist()))

    @cached_property
    def _order(self) -> np.ndarray:
        """The place of every row among the sorted ids."""
        return _order_of(self.ids)


def _order_of(ids: Sequence[ToolId]) -> np.ndarray:
    order = np.empty(len(ids), dtype=np.int64)
    order[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    return order
