"""Search speed of an index: BM25 against rank-bm25 and bm25s, dense and hybrid, HNSW against exact search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from statistics import median

import bm25s
import numpy as np
import rank_bm25
from harness import FigureTable, clocked

from retrievers.dense.ann import LINKS
from retrievers.dense.ann import build as build_graph
from retrievers.dense.retriever import Dense
from retrievers.index import Index
from retrievers.kind import Block
from retrievers.settings import BM25Settings
from retrievers.text import clean, document, tokens
from retrievers.types import Ranking

K = 10
EFFORTS = (64, 128, 256, 512)
TIE = 1e-6
"""Scores closer than this are a tie."""


def lexical(figures: FigureTable, index: Index, queries: Sequence[str], rounds: int, per_round: int) -> None:
    """Compare our BM25 with rank_bm25 and bm25s used by hand: the same tokens, one thread, in turn."""
    figures.title("1. BM25, one thread")
    words = [tokens(document(tool)) for tool in index.tools.values()]
    settings, ours = BM25Settings(), index.retriever("bm25")
    rank = rank_bm25.BM25Plus(words, k1=settings.k1, b=settings.b, delta=0.0)
    peer = bm25s.BM25(method="bm25+", k1=settings.k1, b=settings.b, delta=0.0)
    peer.index(words, show_progress=False)
    scored: dict[str, np.ndarray] = {}

    def by_hand(query: str) -> object:
        scored[query] = rank.get_scores(tokens(clean(query)))
        return np.argsort(scored[query])[::-1][:K]

    ways: dict[str, tuple[Callable[[str], object], int]] = {  # with the repeats per round: more for the fast ones
        "ours": (lambda query: ours.search([query], K), 9),
        "rank_bm25 get_scores + argsort": (by_hand, 1),
        "bm25s retrieve": (lambda query: peer.retrieve([tokens(clean(query))], k=K, show_progress=False), 9),
    }
    speed: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        batch = [queries[row % len(queries)] for row in range(number * per_round, (number + 1) * per_round)]
        for name, (way, repeats) in ways.items():
            seconds: list[float] = []
            for _ in range(repeats):
                with clocked(seconds):
                    for query in batch:
                        way(query)
            speed[name].append(len(batch) / median(seconds))
    for name, values in speed.items():
        figures.note(f"{name}: one query at a time", "q/s", values, digits=1)
    for name in list(ways)[1:]:
        figures.note_ratio(f"ours / {name}", speed["ours"], speed[name], digits=1)
    rows = {tool: row for row, tool in enumerate(index.tools)}
    same = [_same_top(ours.search([query], K)[0], scores, rows) for query, scores in scored.items()]
    figures.note("same top 10 as rank_bm25 (ties apart)", "share", [sum(same) / len(same)], "= 1", all(same))


def _same_top(ours: Ranking, scores: np.ndarray, rows: dict[str, int]) -> bool:
    """True if our ranking has the peer's best scores, rank by rank, for tools that the peer scores the same."""
    best = np.sort(scores)[::-1][:K]
    best = best[best > 0]
    theirs = scores[[rows[tool] for tool in ours.ids]]
    return len(theirs) == len(best) and np.allclose(theirs, best, atol=TIE) and np.allclose(ours.scores, best)


def semantic(figures: FigureTable, index: Index, vectors: np.ndarray, queries: Sequence[str]) -> None:
    """Time single queries end to end, and the part that is not the encoder."""
    figures.title("2. Dense and hybrid, one query at a time")
    dense, hybrid, number = index.retriever("dense"), index.retriever("hybrid"), count()
    assert isinstance(dense, Dense)

    def fresh(row: int) -> list[str]:
        """A query that was never asked: the encoder caches recent ones."""
        return [f"{queries[row]} {next(number)}"]

    ways: dict[str, Callable[[int], object]] = {
        "dense: search, end to end": lambda row: dense.search(fresh(row), K),
        "dense: search_vectors, without the encoder": lambda row: dense.search_vectors(vectors[row : row + 1], K),
        "hybrid: search, end to end": lambda row: hybrid.search(fresh(row), K),
    }
    for name, way in ways.items():
        way(0)
        seconds: list[float] = []
        for row in range(len(queries)):
            with clocked(seconds):
                way(row)
        figures.note(name, "ms", [1000 * value for value in seconds], digits=2)


def approximate(figures: FigureTable, index: Index, queries: np.ndarray, repeats: int) -> None:
    """Compare the HNSW graph of large segments with exact search over the same vectors."""
    figures.title("4. Approximate (HNSW) against exact search over the same vectors")
    exact = index.retriever("dense")
    assert isinstance(exact, Dense)
    vectors = np.concatenate([block.arrays["vectors"] for block in index._blocks["dense"]])
    seconds: list[float] = []
    with clocked(seconds):
        graph = build_graph(vectors, LINKS)
    figures.note(f"graph: build, {LINKS} links", "s", seconds, digits=1)
    block = Block({"vectors": vectors, "graph": graph}, index.rows.live)
    truth = exact.search_vectors(queries, K)
    base = {batch: _rates(exact, queries, batch, repeats) for batch in (1, 64)}
    for effort in EFFORTS:
        near = Dense(exact._encoder, [block], index.rows, "bench", effort)
        recalls = [_recall(a, b) for a, b in zip(near.search_vectors(queries, K), truth, strict=True)]
        figures.note(f"effort {effort}: recall@10", "share", [float(np.mean(recalls))], digits=4)
        for batch in (1, 64):
            rates = _rates(near, queries, batch, repeats)
            figures.note_ratio(f"effort {effort}, batch {batch} / exact", rates, base[batch])


def _rates(dense: Dense, queries: np.ndarray, batch: int, repeats: int) -> list[float]:
    """Queries per second, one figure per repeat."""
    chosen = queries[: max(batch, 128 // batch * batch)]
    seconds: list[float] = []
    for _ in range(repeats):
        with clocked(seconds):
            for start in range(0, len(chosen), batch):
                dense.search_vectors(chosen[start : start + batch], K)
    return [len(chosen) / value for value in seconds]


def _recall(ranking: Ranking, truth: Ranking) -> float:
    """Share of ranks that are as good as the exact ones: an equal score counts, whichever tool has it."""
    threshold = truth.scores[-1] - TIE
    return min(len(truth), sum(score >= threshold for score in ranking.scores)) / len(truth)
