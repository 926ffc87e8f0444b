"""Near-duplicate clusters of tools, and how often each tool is a neighbour of others.

Both come from one pass over the TF-IDF cosines of all pairs, as sparse products of a block of rows at a time. A word in
half of 50,000 tools would alone cost 25,000 x 25,000 multiplications, so the most frequent words are left out of the
products until these fit a budget. Clusters stay exact: the contribution of the left-out words to a cosine is bounded by
their norms, and pairs for which that matters are computed in full. Neighbours are computed without those words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components

from retrievers.lint.finding import Progress

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Sparse = Any  # scipy has no types

BUDGET = 1_000_000_000
"""Multiplications of one pass: about twenty seconds on one core. All words of 10,000 ordinary tools fit."""

BLOCK = 512  # rows per product: with 50,000 tools a block's result stays under 300 MB

MAX_PAIRS = 2_000_000
"""Pairs kept before they are folded into clusters; one template used for thousands of tools makes millions."""

ROUNDING = 1e-5  # cosines this close are equal: sums of 32-bit floats


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Result of the pass over all pairs, by row."""

    clusters: list[list[int]]
    """Rows joined by chains of pairs at or above the threshold; only clusters of two and more, in row order."""
    occurrences: NDArray[np.float64]
    """Number of other rows with this one among their nearest, without near-duplicates. Ties share a rank."""


def vectors(documents: Sequence[Sequence[str]]) -> Sparse:
    """Rows of unit length: (1 + log tf) x smoothed idf. A document without words is a row of zeros."""
    column: dict[str, int] = {}
    columns: list[int] = []
    starts = [0]
    for words in documents:
        columns.extend(column.setdefault(word, len(column)) for word in words)
        starts.append(len(columns))
    ones = np.ones(len(columns), dtype=np.float32)
    matrix: Sparse = csr_matrix((ones, columns, starts), shape=(len(documents), len(column)), dtype=np.float32)
    matrix.sum_duplicates()
    frequency = np.bincount(matrix.indices, minlength=len(column))
    idf = np.log((1 + len(documents)) / (1 + frequency)) + 1
    matrix.data = ((1 + np.log(matrix.data)) * idf[matrix.indices]).astype(np.float32)
    norms = _norms(matrix)
    norms[norms == 0] = 1
    matrix.data /= np.repeat(norms, np.diff(matrix.indptr))
    return matrix


def neighbourhood(
    matrix: Sparse, similarity: float, k: int, progress: Progress | None = None, budget: int = BUDGET
) -> Neighbourhood:
    """Clusters of rows with cosine >= similarity, and the k-occurrence of every row. Equal rows should be one row."""
    size = matrix.shape[0]
    rare, common = _split_by_frequency(matrix, budget)
    rest = _norms(common)
    transposed = rare.T.tocsr()
    occurrences = np.zeros(size, dtype=np.float64)
    first, second = _alike_by_common_words(common, rest, similarity)
    for start in range(0, size, BLOCK):
        product = rare[start : start + BLOCK] @ transposed
        rows = np.repeat(np.arange(product.shape[0], dtype=np.int64), np.diff(product.indptr)) + start
        near = _near(matrix, product, rows, rest, similarity)
        first = np.concatenate([first, rows[near]])
        second = np.concatenate([second, product.indices[near]])
        if len(first) > MAX_PAIRS:
            first, second = _folded(first, second, size)
        product.data[near] = 0
        product.data[rows == product.indices] = 0
        _count_nearest(product, k, occurrences)
        if progress:
            progress(min(start + BLOCK, size), size)
    return Neighbourhood(list(_clusters(first, second, size)), occurrences)


def _norms(matrix: Sparse) -> Floats:
    squares = np.asarray(matrix.multiply(matrix).sum(axis=1), dtype=np.float64).ravel()
    return np.sqrt(squares).astype(np.float32)


def _split_by_frequency(matrix: Sparse, budget: int) -> tuple[Sparse, Sparse]:
    """The matrix with only the words that fit the budget, rarest first, and with only the others."""
    frequency = np.bincount(matrix.indices, minlength=matrix.shape[1]).astype(np.float64)
    order = np.argsort(frequency, kind="stable")
    kept = np.zeros(matrix.shape[1], dtype=np.float32)
    kept[order[np.cumsum(frequency[order] ** 2) <= budget]] = 1
    return _masked(matrix, kept), _masked(matrix, 1 - kept)


def _masked(matrix: Sparse, mask: Floats) -> Sparse:
    masked = matrix.copy()
    masked.data = masked.data * mask[masked.indices]
    masked.eliminate_zeros()
    return masked


def _near(matrix: Sparse, product: Sparse, rows: Ints, rest: Floats, similarity: float) -> Ints:
    """Indices in the product's data of pairs (not a row with itself) whose full cosine reaches the threshold."""
    sure = similarity - ROUNDING
    # |a·b| over the common words is at most the product of their norms, so only these pairs can get there.
    near = np.flatnonzero(product.data + rest[rows] * rest[product.indices] >= sure)
    near = near[rows[near] != product.indices[near]]
    doubtful = near[product.data[near] < sure]
    failed = [
        part[_cosines(matrix, rows[part], product.indices[part]) < sure]
        for part in np.array_split(doubtful, len(doubtful) // 100_000 + 1)
    ]
    return np.setdiff1d(near, np.concatenate(failed), assume_unique=True)


def _cosines(matrix: Sparse, first: Ints, second: Ints) -> Floats:
    return np.asarray(matrix[first].multiply(matrix[second]).sum(axis=1), dtype=np.float32).ravel()


def _alike_by_common_words(common: Sparse, rest: Floats, similarity: float) -> tuple[Ints, Ints]:
    """Pairs that may share no rare word at all: such rows consist almost wholly of common ones.

    Their cosine is the product of two norms and of the cosine of the common parts. So among rows with the same common
    part the one with the largest norm is as near to anything as any of them, and it can represent them all.
    """
    sure = similarity - ROUNDING
    leaders: dict[tuple[bytes, bytes], int] = {}
    pairs: list[tuple[int, int]] = []
    rows = np.flatnonzero(rest >= sure)
    for row in rows[np.argsort(-rest[rows], kind="stable")].tolist():
        span = slice(common.indptr[row], common.indptr[row + 1])
        # Rows of a csr matrix with sorted indices: equal parts are equal bytes.
        key = (common.indices[span].tobytes(), np.round(common.data[span] / rest[row], 4).tobytes())
        leader = leaders.setdefault(key, row)
        if leader != row and rest[leader] * rest[row] >= sure:
            pairs.append((leader, row))
    chosen = np.array(sorted(leaders.values()), dtype=np.int64)
    for start in range(0, len(chosen), BLOCK):
        product = (common[chosen[start : start + BLOCK]] @ common[chosen].T).tocoo()
        near = (product.data >= sure) & (product.row + start < product.col)
        pairs.extend(zip(chosen[product.row[near] + start].tolist(), chosen[product.col[near]].tolist(), strict=True))
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _labels(first: Ints, second: Ints, size: int) -> NDArray[np.int32]:
    graph = coo_matrix((np.ones(len(first), dtype=np.int8), (first, second)), shape=(size, size))
    labels: NDArray[np.int32] = connected_components(graph, directed=False)[1]
    return labels


def _folded(first: Ints, second: Ints, size: int) -> tuple[Ints, Ints]:
    """The same clusters with one pair per row."""
    labels = _labels(first, second, size)
    leaders = np.unique(labels, return_index=True)[1][labels]
    rows = np.flatnonzero(leaders != np.arange(size))
    return leaders[rows], rows


def _clusters(first: Ints, second: Ints, size: int) -> Iterator[list[int]]:
    if not len(first):
        return
    leaders, rows = _folded(first, second, size)
    members: dict[int, list[int]] = {}
    for leader, row in zip(leaders.tolist(), rows.tolist(), strict=True):
        members.setdefault(leader, [leader]).append(row)
    for leader in sorted(members):
        yield members[leader]


def _count_nearest(product: Sparse, k: int, occurrences: NDArray[np.float64]) -> None:
    """Add one to each of the k nearest columns of every row; ties for the last ranks share them."""
    for row in range(product.shape[0]):
        span = slice(product.indptr[row], product.indptr[row + 1])
        scores, columns = product.data[span], product.indices[span]
        if len(scores) > k:
            last = np.partition(scores, len(scores) - k)[len(scores) - k]
            kept = scores >= last - ROUNDING
            scores, columns = scores[kept], columns[kept]
        else:
            last = np.float32(0)
        positive = scores > ROUNDING
        scores, columns = scores[positive], columns[positive]
        ahead = scores > last + ROUNDING
        occurrences[columns[ahead]] += 1
        tied = columns[~ahead]
        if len(tied):
            occurrences[tied] += min(1.0, (k - int(ahead.sum())) / len(tied))
