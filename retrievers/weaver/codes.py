"""A code of its own for every tool.

Quantising alone lets tools share a code: near duplicates, and exact ones always. Here tools of one branch are given its
last codes one each, at the least total distance; a branch with more tools than codes hands the rest to the nearest one
that has room. Whoever comes later takes the nearest code that is free. Nobody who has a code is ever moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from retrievers.errors import BadInput

Path = tuple[int, ...]
Prices = Callable[[np.ndarray], np.ndarray]
Known = Sequence[Collection[int]] | None
"""By level, the codes that some tool has had from the beginning."""


def assign(points: np.ndarray, books: np.ndarray, prices: Prices | None) -> tuple[list[Path], int]:
    """(points, width) and (levels, codes, width) -> a path each, all different, and how many shared one before that.

    `prices` of (points, codes) costs are what even shares of the last level ask for; None: the nearest code.
    """
    levels, count, _ = books.shape
    check_room(len(points), levels, count)
    left = points.astype(np.float64)
    prefixes = np.zeros((len(points), levels - 1), dtype=np.int64)
    for level in range(levels - 1):
        prefixes[:, level] = squared(left, books[level]).argmin(axis=1)
        left = left - books[level][prefixes[:, level]]
    costs = squared(left, books[-1])
    if prices is not None:
        costs = costs + prices(costs)
    wanted = [
        (*prefix, last)
        for prefix, last in zip(map(tuple, prefixes.tolist()), costs.argmin(axis=1).tolist(), strict=True)
    ]
    shared = sum(times for times in Counter(wanted).values() if times > 1)
    return _resolved(points, books, costs, wanted), shared


def _resolved(points: np.ndarray, books: np.ndarray, costs: np.ndarray, wanted: list[Path]) -> list[Path]:
    from scipy.optimize import linear_sum_assignment

    found: list[Path | None] = list(wanted)
    branches: dict[Path, list[int]] = {}
    for row, path in enumerate(wanted):
        branches.setdefault(path[:-1], []).append(row)
    for prefix, rows in branches.items():
        if len({wanted[row] for row in rows}) == len(rows):
            continue
        for row in rows:
            found[row] = None
        for place, last in zip(*linear_sum_assignment(costs[rows]), strict=True):
            found[rows[place]] = (*prefix, int(last))
    room = Room(books.shape[0], books.shape[1], [path for path in found if path is not None])
    return [path or room.nearest(points[row], books) for row, path in enumerate(found)]


class Room:
    """Which codes are free."""

    def __init__(self, levels: int, codes: int, taken: Iterable[Path]) -> None:
        self._levels, self._codes = levels, codes
        self._taken: set[Path] = set()
        self._load: Counter[Path] = Counter()
        for path in taken:
            self.take(path)

    def nearest(self, point: np.ndarray, books: np.ndarray, known: Known = None) -> Path:
        """Takes a free code: at each level the nearest branch that has room, `known` ones before others."""
        (path,) = self.near(point, books, 1, known)
        self.take(path)
        return path

    def near(self, point: np.ndarray, books: np.ndarray, branches: int, known: Known = None) -> list[Path]:
        """Free codes, the nearest first: at each level so many of the branches that have room."""
        check_room(len(self._taken) + 1, self._levels, self._codes)
        found: list[tuple[Path, np.ndarray]] = [((), point.astype(np.float64))]
        for level, book in enumerate(books):
            size, met = self._codes ** (self._levels - level - 1), known[level] if known else None
            found = [
                ((*prefix, code), left - book[code])
                for prefix, left in found
                for code in self._order(prefix, left, book, size, met)[:branches]
            ]
        return [path for path, _ in found]

    def _order(
        self, prefix: Path, left: np.ndarray, book: np.ndarray, size: int, known: Collection[int] | None
    ) -> list[int]:
        order = np.lexsort((np.arange(self._codes), squared(left[None], book)[0])).tolist()
        if known is not None:
            order.sort(key=lambda code: code not in known)
        return [code for code in order if self._load[(*prefix, code)] < size]

    def take(self, path: Path) -> None:
        """It is free no longer."""
        if path in self._taken:
            return
        self._taken.add(path)
        for depth in range(1, len(path) + 1):
            self._load[path[:depth]] += 1


def check_room(tools: int, levels: int, codes: int) -> None:
    """Refuses more tools than there are codes."""
    if tools > codes**levels:
        raise BadInput(
            f"{levels} levels of {codes} codes have room for {codes**levels} tools, not {tools}; "
            "raise weave.codes or weave.levels and build the index anew"
        )


def squared(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(left, right): squared distances."""
    right = right.astype(np.float64)
    apart = (left**2).sum(axis=1)[:, None] - 2 * left @ right.T + (right**2).sum(axis=1)[None]
    found: np.ndarray = np.maximum(apart, 0.0)
    return found


def evenness(paths: Sequence[Path], levels: int, codes: int) -> list[float]:
    """For each level the entropy of its codes' use, 1 where all are used alike (as far as there are tools for them)."""
    found = []
    for level in range(levels):
        counts = np.array(list(Counter(path[level] for path in paths).values()), dtype=np.float64)
        shares = counts / counts.sum()
        most = np.log(min(codes, len(paths)))
        found.append(float(-(shares * np.log(shares)).sum() / most) if most > 0 else 1.0)
    return found
