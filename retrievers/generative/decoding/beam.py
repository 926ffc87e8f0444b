"""Beam search over a trie: only tokens that continue a tool's code are scored, so nothing else can come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from retrievers.generative.decoding.trie import Trie

MARGIN = 1e-3
"""Sums of logarithms that differ by less may be ties."""


class Decoder(Protocol):
    """A model with unfinished answers, one per row."""

    def log_probs(self, starts: np.ndarray, tokens: np.ndarray, top: int) -> np.ndarray:
        """The log-probability of each of `tokens`; those from starts[i] to starts[i + 1] belong to row i.

        Only the `top` likeliest tokens of a row need a value; the others may be -inf.
        """
        ...

    def advance(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """Continue with these rows (some dropped, some repeated), each one token longer."""
        ...


BeamResult = tuple[np.ndarray, np.ndarray]
"""Terminal nodes, and the log-probabilities of their codes."""


def beam_search(decoder: Decoder, queries: int, trie: Trie, width: int, k: int, stop_early: bool) -> list[BeamResult]:
    """For each query the terminals that the beams reached: all that can be among the best k, in no order.

    `stop_early`: a beam ends once a single tool is left, because the tokens that must follow cost nothing. Without it
    every token of a code is scored. Finished codes take no slot in the beam, and a prefix that is already less likely
    than k finished codes is dropped; neither changes the best k.
    """
    at_end = trie.only_end >= 0 if stop_early else trie.end_is_next
    query, node, score = np.arange(queries), np.zeros(queries, dtype=np.int64), np.zeros(queries)
    finished: list[list[BeamResult]] = [[] for _ in range(queries)]
    while len(node):
        starts, tokens, nodes = trie.children(node)
        rows = np.repeat(np.arange(len(node)), np.diff(starts))
        total = score[rows] + decoder.log_probs(starts, tokens, max(width, k))
        ended = at_end[nodes] & np.isfinite(total)
        _collect(finished, query[rows[ended]], trie.only_end[nodes[ended]], total[ended])
        open_edges = np.flatnonzero(~at_end[nodes] & np.isfinite(total))
        limits = np.array([_kth_score(results, k) for results in finished])
        open_edges = open_edges[total[open_edges] >= limits[query[rows[open_edges]]] - MARGIN]
        kept = open_edges[_best(query[rows[open_edges]], total[open_edges], width)]
        query, node, score = query[rows[kept]], nodes[kept], total[kept]
        if len(kept):
            decoder.advance(rows[kept], tokens[kept])
    return [_best_k(_join(results), k) for results in finished]


def _collect(finished: Sequence[list[BeamResult]], queries: np.ndarray, ends: np.ndarray, scores: np.ndarray) -> None:
    different, first = np.unique(queries, return_index=True)  # the queries are in ascending order
    bounds = np.append(first, len(queries))
    for query, start, end in zip(different, bounds[:-1], bounds[1:], strict=True):
        finished[query].append((ends[start:end], scores[start:end]))


def _join(results: Sequence[BeamResult]) -> BeamResult:
    if not results:
        return np.empty(0, dtype=np.int64), np.empty(0)
    return np.concatenate([ends for ends, _ in results]), np.concatenate([scores for _, scores in results])


def _best_k(result: BeamResult, k: int) -> BeamResult:
    """The best k, and all that may tie with the last of them."""
    near = result[1] >= _kth_score([result], k) - MARGIN
    return result[0][near], result[1][near]


def _kth_score(results: Sequence[BeamResult], k: int) -> float:
    """The score that a prefix must reach to be among the best k."""
    scores = _join(results)[1]
    return float(np.partition(scores, len(scores) - k)[len(scores) - k]) if len(scores) >= k else -np.inf


def _best(queries: np.ndarray, scores: np.ndarray, width: int) -> np.ndarray:
    """Indices of each query's best, the earlier one of equals."""
    order = np.lexsort((np.arange(len(scores)), -scores, queries))
    sorted_queries = queries[order]
    first = np.searchsorted(sorted_queries, sorted_queries)
    return np.sort(order[np.arange(len(order)) - first < width])
