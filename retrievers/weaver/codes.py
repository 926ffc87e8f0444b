"""Unique codes: each tool gets a path of codes, one per level, that no other tool has.

Quantisation alone gives similar tools the same code. Here the tools of one branch get its last codes one each, at the
least total distance; a branch with more tools than codes passes the rest to the nearest branch with room. A tool added
later takes the nearest free code. The code of a tool never changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from retrievers.errors import BadInput

CodePath = tuple[int, ...]
Prices = Callable[[np.ndarray], np.ndarray]
KnownCodes = Sequence[Collection[int]] | None
"""Per level, the codes that the model was trained on."""


def assign_unique_paths(points: np.ndarray, books: np.ndarray, prices: Prices | None) -> tuple[list[CodePath], int]:
    """(points, width) and (levels, codes, width) -> one path per point, and how many shared one before resolution.

    `prices` of (points, codes) costs balance the load of the last level; None: the nearest code.
    """
    levels, count, _ = books.shape
    check_capacity(len(points), levels, count)
    left = points.astype(np.float64)
    prefixes = np.zeros((len(points), levels - 1), dtype=np.int64)
    for level in range(levels - 1):
        prefixes[:, level] = squared_distances(left, books[level]).argmin(axis=1)
        left = left - books[level][prefixes[:, level]]
    costs = squared_distances(left, books[-1])
    if prices is not None:
        costs = costs + prices(costs)
    lasts = costs.argmin(axis=1).tolist()
    wanted = [(*prefix, last) for prefix, last in zip(prefixes.tolist(), lasts, strict=True)]
    shared = sum(times for times in Counter(wanted).values() if times > 1)
    return _resolve_collisions(points, books, costs, wanted), shared


def _resolve_collisions(
    points: np.ndarray, books: np.ndarray, costs: np.ndarray, wanted: list[CodePath]
) -> list[CodePath]:
    from scipy.optimize import linear_sum_assignment

    paths: list[CodePath | None] = list(wanted)
    branches: dict[CodePath, list[int]] = {}
    for row, path in enumerate(wanted):
        branches.setdefault(path[:-1], []).append(row)
    for prefix, rows in branches.items():
        if len({wanted[row] for row in rows}) == len(rows):
            continue
        for row in rows:
            paths[row] = None
        for index, last in zip(*linear_sum_assignment(costs[rows]), strict=True):
            paths[rows[index]] = (*prefix, int(last))
    free = FreeCodes(books, [path for path in paths if path is not None])
    return [path or free.take_nearest(points[row]) for row, path in enumerate(paths)]


class FreeCodes:
    """The codes of (levels, codes, width) codebooks that no tool has."""

    def __init__(self, books: np.ndarray, taken: Iterable[CodePath], known: KnownCodes = None) -> None:
        """`known` codes are preferred to others."""
        self._books, self._known = books, known
        self._levels, self._size = books.shape[:2]
        self._taken: set[CodePath] = set()
        self._load: Counter[CodePath] = Counter()
        for path in taken:
            self.take(path)

    def take_nearest(self, point: np.ndarray) -> CodePath:
        """Take the code of the nearest branch with room at each level."""
        check_capacity(len(self._taken) + 1, self._levels, self._size)
        path: CodePath = ()
        left = point.astype(np.float64)
        for level, book in enumerate(self._books):
            capacity = self._size ** (self._levels - level - 1)
            order = np.lexsort((np.arange(self._size), squared_distances(left[None], book)[0])).tolist()
            if self._known is not None:
                known = self._known[level]
                order.sort(key=lambda code, known=known: code not in known)
            code = next(code for code in order if self._load[(*path, code)] < capacity)
            path, left = (*path, code), left - book[code]
        self.take(path)
        return path

    def take(self, path: CodePath) -> None:
        """Mark a code as taken."""
        if path in self._taken:
            return
        self._taken.add(path)
        for depth in range(1, len(path) + 1):
            self._load[path[:depth]] += 1


def check_capacity(tools: int, levels: int, size: int) -> None:
    """Refuse more tools than there are codes."""
    if tools > size**levels:
        raise BadInput(
            f"{levels} levels of {size} codes have room for {size**levels} tools, not {tools}; "
            "raise quantiser.codebook_size or quantiser.levels and build the index again"
        )


def squared_distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(left, right): squared Euclidean distances."""
    right = right.astype(np.float64)
    squares = (left**2).sum(axis=1)[:, None] - 2 * left @ right.T + (right**2).sum(axis=1)[None]
    distances: np.ndarray = np.maximum(squares, 0.0)
    return distances


def usage_entropy(paths: Sequence[CodePath], levels: int, size: int) -> list[float]:
    """Per level the entropy of the codes' use, relative to the largest possible: 1 where all are used equally."""
    entropies = []
    for level in range(levels):
        counts = np.array(list(Counter(path[level] for path in paths).values()), dtype=np.float64)
        shares = counts / counts.sum()
        largest = np.log(min(size, len(paths)))
        entropies.append(float(-(shares * np.log(shares)).sum() / largest) if largest > 0 else 1.0)
    return entropies
