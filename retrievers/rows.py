"""The rows of an opened index: which tool each row is, which are live, and how scores become a ranking."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from retrievers.types import Ranking, ToolId

SORT_AT_ONCE = 1_000  # up to this many rows are sorted by id per search; above, all ids are sorted once


class Rows:
    """All rows of all segments, in order, the dead ones included."""

    def __init__(self, ids: Sequence[ToolId], live: np.ndarray) -> None:
        self.ids = list(ids)
        self.live = live
        self.dead = np.flatnonzero(~live)

    def best(self, scores: np.ndarray, k: int, floor: float = -np.inf, digits: int = 6) -> Ranking:
        """The k best rows above the floor. `scores` (rows,) is overwritten where rows are dead.

        Scores are compared after rounding: the last bits depend on how a batch was cut, and must not decide a rank.
        """
        scores[self.dead] = -np.inf
        rows = np.flatnonzero(scores > floor)
        if len(rows) > k:
            above = scores[rows]
            edge = np.partition(above, len(above) - k)[len(above) - k]
            rows = rows[above >= edge - 10.0**-digits]
        return self.ranking(rows, scores[rows], k, digits)

    def ranking(self, rows: np.ndarray, scores: np.ndarray, k: int, digits: int = 6) -> Ranking:
        """A ranking of the given rows; ties are broken by id."""
        rounded = np.round(scores.astype(np.float64), digits)
        order = self._order[rows] if len(rows) > SORT_AT_ONCE else _order_of([self.ids[row] for row in rows])
        chosen = np.lexsort((order, -rounded))[:k]
        return Ranking(tuple(self.ids[row] for row in rows[chosen]), tuple(rounded[chosen].tolist()))

    @cached_property
    def _order(self) -> np.ndarray:
        return _order_of(self.ids)


def _order_of(ids: Sequence[ToolId]) -> np.ndarray:
    order = np.empty(len(ids), dtype=np.int64)
    order[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    return order
