"""Speed of search: BM25 against its peers, dense and hybrid, approximate against exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from statistics import median

import bm25s
import numpy as np
import rank_bm25
from scale_figures import Figures, clocked

from retrievers.dense.ann import Graph
from retrievers.dense.ann import build as build_graph
from retrievers.dense.retriever import Dense
from retrievers.index import Index
from retrievers.kind import Block
from retrievers.settings import BM25Settings, DenseSettings
from retrievers.text import clean, document, tokens
from retrievers.types import Ranking

K = 10
EFFORTS = (64, 128, 256, 512)
CLOSE = 1e-6
"""Scores nearer to each other than this are a tie."""


def lexical(figures: Figures, index: Index, queries: Sequence[str], rounds: int, many: int, target: bool) -> None:
    """Our BM25 against rank_bm25 and bm25s used by hand, over the same tokens, one thread, taking turns.

    `many` queries a round; every ranking that rank_bm25 gives is compared with ours.
    """
    figures.title("1. BM25, one thread")
    ids = list(index.tools)
    words = [tokens(document(tool)) for tool in index.tools.values()]
    ours, (rank, peer) = index.retriever("bm25"), _peers(figures, words)
    scored: dict[str, np.ndarray] = {}

    def by_hand(query: str) -> object:
        scored[query] = rank.get_scores(tokens(clean(query)))
        return np.argsort(scored[query])[::-1][:K]

    ways: dict[str, tuple[Callable[[str], object], int]] = {  # with how often a round repeats it: the fast ones more
        "ours": (lambda query: ours.search([query], K), 9),
        "rank_bm25 get_scores + argsort": (by_hand, 1),
        "rank_bm25 get_top_n": (lambda query: rank.get_top_n(tokens(clean(query)), ids, n=K), 1),
        "bm25s retrieve": (lambda query: peer.retrieve([tokens(clean(query))], k=K, show_progress=False), 9),
    }
    speed: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        some = [queries[place % len(queries)] for place in range(turn * many, (turn + 1) * many)]
        for name, (way, repeats) in ways.items():
            seconds: list[float] = []
            for _ in range(repeats):
                with clocked(seconds):
                    for query in some:
                        way(query)
            speed[name].append(len(some) / median(seconds))
    for name, values in speed.items():
        figures.note(f"{name}: one query at a time", "q/s", values, digits=1)
    seconds = []
    for _ in range(rounds):
        with clocked(seconds):
            ours.search(queries[:64], K)
    figures.note("ours: 64 queries in one call", "q/s", [len(queries[:64]) / value for value in seconds], digits=1)
    for name in list(ways)[1:]:
        ratios = [mine / theirs for mine, theirs in zip(speed["ours"], speed[name], strict=True)]
        met = median(ratios) >= 100 if target and name.startswith("rank") else None
        figures.note(f"ratio: ours / {name}", "x", ratios, ">= 100", met, digits=1)
    place_of = {tool: place for place, tool in enumerate(ids)}
    same = [_same_top(ours.search([query], K)[0], scores, place_of) for query, scores in scored.items()]
    figures.note("same top 10 as rank_bm25 (ties apart)", "share", [sum(same) / len(same)], "= 1", all(same))
    asked = sum(len(tokens(clean(query))) for query in scored) / len(scored)
    held = sum(map(len, words)) / len(words)
    print(f"  {len(same)} queries compared; {asked:.1f} words a query, {held:.1f} words a tool")


def _peers(figures: Figures, words: Sequence[list[str]]) -> tuple[rank_bm25.BM25Plus, bm25s.BM25]:
    """The other libraries, as their users make them, with our settings."""
    settings = BM25Settings()
    seconds: list[float] = []
    with clocked(seconds):
        rank = rank_bm25.BM25Plus(words, k1=settings.k1, b=settings.b, delta=0.0)
    figures.note("rank_bm25: index of ready words", "s", seconds, digits=2)
    peer = bm25s.BM25(method="bm25+", k1=settings.k1, b=settings.b, delta=0.0)
    seconds = []
    with clocked(seconds):
        peer.index(words, show_progress=False)
    figures.note("bm25s: index of ready words", "s", seconds, digits=2)
    return rank, peer


def _same_top(ours: Ranking, scores: np.ndarray, place_of: dict[str, int]) -> bool:
    """True where ours holds the peer's best scores, place by place, for tools that the peer scores the same."""
    best = np.sort(scores)[::-1][:K]
    best = best[best > 0]
    theirs = scores[[place_of[tool] for tool in ours.ids]]
    return len(theirs) == len(best) and np.allclose(theirs, best, atol=CLOSE) and np.allclose(ours.scores, best)


def semantic(figures: Figures, index: Index, vectors: np.ndarray, queries: Sequence[str]) -> None:
    """One query end to end, and what of it is not the encoder."""
    figures.title("2. Dense and hybrid, one query at a time")
    dense = index.retriever("dense")
    assert isinstance(dense, Dense)
    asked = count()

    def fresh(place: int) -> str:
        """A query that was never asked: the encoder remembers recent ones."""
        return f"{queries[place]} {next(asked)}"

    ways: dict[str, Callable[[int], object]] = {
        "dense: search, end to end": lambda place: dense.search([fresh(place)], K),
        "dense: search_vectors, without the encoder": lambda place: dense.search_vectors(vectors[place : place + 1], K),
        "hybrid: search, end to end": lambda place: index.retriever("hybrid").search([fresh(place)], K),
    }
    for name, way in ways.items():
        way(0)
        seconds: list[float] = []
        for place in range(len(queries)):
            with clocked(seconds):
                way(place)
        figures.note(name, "ms", [1000 * value for value in seconds], digits=2)
        figures.note(f"{name}, 95th percentile", "ms", [1000 * float(np.quantile(seconds, 0.95))], digits=2)


def approximate(figures: Figures, index: Index, queries: np.ndarray, repeats: int) -> None:
    """The HNSW graph that larger segments get, against exact search over the same vectors."""
    figures.title("4. Approximate (HNSW) against exact search over the same vectors")
    exact = index.retriever("dense")
    assert isinstance(exact, Dense)
    settings = DenseSettings()
    vectors = np.concatenate([block.arrays["vectors"] for block in index._blocks["dense"]])
    seconds: list[float] = []
    with clocked(seconds):
        graph = build_graph(vectors, settings.ann_links)
    figures.note(f"graph: build, {settings.ann_links} links", "s", seconds, digits=1)
    figures.note("graph: size (vectors within)", "MB", [len(graph) / 1e6], digits=1)
    seconds = []
    with clocked(seconds):
        Graph(graph, index.rows.live, settings.ann_effort)
    figures.note("graph: open", "s", seconds)
    block = Block({"vectors": vectors, "graph": graph}, index.rows.live)
    truth = exact.search_vectors(queries, K)
    base = {batch: _batches(exact, queries, batch, repeats) for batch in (1, 64)}
    for batch, values in base.items():
        figures.note(f"exact: batch {batch}", "q/s", values, digits=1)
    for effort in EFFORTS:
        near = Dense(exact._encoder, [block], index.rows, "bench", effort)
        recalls = [_recall(a, b) for a, b in zip(near.search_vectors(queries, K), truth, strict=True)]
        share = float(np.mean(recalls))
        met = share >= 0.98 if effort == settings.ann_effort else None
        figures.note(f"effort {effort}: recall@10", "share", [share], ">= 0.98", met, digits=4)
        for batch in (1, 64):
            values = _batches(near, queries, batch, repeats)
            figures.note(f"  effort {effort}: batch {batch}", "q/s", values, digits=1)
            ratios = [a / b for a, b in zip(values, base[batch], strict=True)]
            figures.note(f"  effort {effort}: batch {batch}, ratio to exact", "x", ratios, digits=2)


def _batches(dense: Dense, queries: np.ndarray, batch: int, repeats: int) -> list[float]:
    """Queries a second, a figure a repeat."""
    some = queries[: max(batch, 128 // batch * batch)]
    seconds: list[float] = []
    for _ in range(repeats):
        with clocked(seconds):
            for start in range(0, len(some), batch):
                dense.search_vectors(some[start : start + batch], K)
    return [len(some) / value for value in seconds]


def _recall(found: Ranking, truth: Ranking) -> float:
    """Share of the places that are as good as the exact ones: an equal score counts, whichever tool has it."""
    edge = truth.scores[-1] - CLOSE
    return min(len(truth), sum(score >= edge for score in found.scores)) / len(truth)
