"""Beam search over a trie: only what spells a tool is ever asked for, so nothing else can come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from retrievers.generative.decoding.trie import Trie

MARGIN = 1e-3
"""Sums of logarithms that differ by less may be ties."""


class Run(Protocol):
    """A model in the midst of some answers, one a row."""

    def scores(self, starts: np.ndarray, tokens: np.ndarray, most: int) -> np.ndarray:
        """The log-probability of each of `tokens`, those from starts[i] to starts[i + 1] being row i's.

        Of a row's tokens only the `most` likeliest need be told; the others may be -inf.
        """
        ...

    def advance(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """Goes on with these rows (some left out, some several times), each one token longer."""
        ...


Found = tuple[np.ndarray, np.ndarray]
"""Terminal nodes, and the log-probabilities of their codes."""


def search(run: Run, queries: int, trie: Trie, width: int, k: int, early: bool) -> list[Found]:
    """For each query the terminals that the beams reached: all that can be among the best k, in no order.

    `early`: a beam is at its end once a single tool is left, for what can only be said costs nothing. Without it every
    token of a code is asked for. Finished codes take no place in the beam, and a prefix that is already less likely
    than k finished codes is let go; neither changes the best k.
    """
    at_end = trie.only >= 0 if early else trie.last
    query, node, score = np.arange(queries), np.zeros(queries, dtype=np.int64), np.zeros(queries)
    done: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(queries)]
    while len(node):
        starts, tokens, nodes = trie.children(node)
        rows = np.repeat(np.arange(len(node)), np.diff(starts))
        total = score[rows] + run.scores(starts, tokens, max(width, k))
        ended = at_end[nodes] & np.isfinite(total)
        _collect(done, query[rows[ended]], trie.only[nodes[ended]], total[ended])
        going = np.flatnonzero(~at_end[nodes] & np.isfinite(total))
        bar = np.array([_bar(found, k) for found in done])
        going = going[total[going] >= bar[query[rows[going]]] - MARGIN]
        kept = going[_best(query[rows[going]], total[going], width)]
        query, node, score = query[rows[kept]], nodes[kept], total[kept]
        if len(kept):
            run.advance(rows[kept], tokens[kept])
    return [_head(_joined(found), k) for found in done]


def _collect(
    done: Sequence[list[tuple[np.ndarray, np.ndarray]]], queries: np.ndarray, ends: np.ndarray, scores: np.ndarray
) -> None:
    different, first = np.unique(queries, return_index=True)  # the queries stand in order
    bounds = np.append(first, len(queries))
    for query, start, end in zip(different, bounds[:-1], bounds[1:], strict=True):
        done[query].append((ends[start:end], scores[start:end]))


def _joined(found: Sequence[tuple[np.ndarray, np.ndarray]]) -> Found:
    if not found:
        return np.empty(0, dtype=np.int64), np.empty(0)
    return np.concatenate([ends for ends, _ in found]), np.concatenate([scores for _, scores in found])


def _head(found: Found, k: int) -> Found:
    """The best k and whatever may be a tie with the last of them: of thousands of tools most are nobody's answer."""
    near = found[1] >= _bar([found], k) - MARGIN
    return found[0][near], found[1][near]


def _bar(found: Sequence[tuple[np.ndarray, np.ndarray]], k: int) -> float:
    """What a prefix must reach to be among the best k."""
    scores = _joined(found)[1]
    return float(np.partition(scores, len(scores) - k)[len(scores) - k]) if len(scores) >= k else -np.inf


def _best(queries: np.ndarray, scores: np.ndarray, width: int) -> np.ndarray:
    """Places of each query's best, the earlier one of equals."""
    order = np.lexsort((np.arange(len(scores)), -scores, queries))
    sorted_queries = queries[order]
    first = np.searchsorted(sorted_queries, sorted_queries)
    return np.sort(order[np.arange(len(order)) - first < width])
