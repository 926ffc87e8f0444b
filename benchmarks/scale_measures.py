"""The measurements of index_scale.py: lexical and dense speed, add and remove, loading, approximate search."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import bm25s
import numpy as np
import rank_bm25

from retrievers.ann import Graph
from retrievers.ann import build as build_graph
from retrievers.dense import Dense
from retrievers.index import Index, add, remove
from retrievers.kinds import Block, Context
from retrievers.settings import BM25Settings, DenseSettings
from retrievers.text import clean, document, tokens
from retrievers.types import Ranking, Tool

K = 10
EFFORTS = (64, 128, 256, 512)
CLOSE = 1e-6
"""Scores nearer to each other than this are a tie."""


@dataclass(slots=True)
class Figures:
    """Values under a name, printed as they come and kept for the JSON file."""

    rows: list[dict[str, object]] = field(default_factory=list)

    def note(
        self, what: str, unit: str, values: Sequence[float], target: str = "", met: bool | None = None, digits: int = 3
    ) -> float:
        """One line of the table: median, spread, how many. Returns the median."""
        middle = median(values)
        spread = f"{min(values):,.{digits}f} - {max(values):,.{digits}f}" if len(values) > 1 else ""
        verdict = "" if met is None else f"{target} {'met' if met else 'MISSED'}"
        print(f"{what:<58} {middle:>12,.{digits}f} {unit:<6} {spread:<25} {len(values):>4} {verdict}", flush=True)
        self.rows.append(
            {"what": what, "unit": unit, "median": middle, "min": min(values), "max": max(values), "n": len(values)}
            | ({} if met is None else {"target": target, "met": met})
        )
        return middle

    def title(self, text: str) -> None:
        """A heading."""
        print(f"\n{text}\n{'what':<58} {'median':>12} {'unit':<6} {'min - max':<25} {'n':>4}", flush=True)


@contextmanager
def clocked(into: list[float]) -> Iterator[None]:
    """Appends the seconds its block took."""
    start = time.perf_counter()
    yield
    into.append(time.perf_counter() - start)


def lexical(figures: Figures, index: Index, queries: Sequence[str], rounds: int, compared: int) -> None:
    """Our BM25 against rank_bm25 and bm25s used by hand, over the same tokens, one thread, taking turns."""
    figures.title("1. BM25")
    ids = [tool.id for tool in index.tools.values()]
    words = [tokens(clean(document(tool))) for tool in index.tools.values()]
    settings = BM25Settings()
    built: dict[str, list[float]] = {"rank_bm25": [], "bm25s": []}
    with clocked(built["rank_bm25"]):
        rank = rank_bm25.BM25Plus(words, k1=settings.k1, b=settings.b, delta=0.0)
    peer = bm25s.BM25(method="bm25+", k1=settings.k1, b=settings.b, delta=0.0)
    with clocked(built["bm25s"]):
        peer.index(words, show_progress=False)
    for name, seconds in built.items():
        figures.note(f"{name}: index of ready tokens", "s", seconds, digits=2)
    ours = index.retriever("bm25")
    ways: dict[str, Callable[[str], object]] = {
        "ours": lambda query: ours.search([query], K),
        "rank_bm25 get_scores + argsort": lambda query: np.argsort(rank.get_scores(tokens(clean(query))))[::-1][:K],
        "rank_bm25 get_top_n": lambda query: rank.get_top_n(tokens(clean(query)), ids, n=K),
        "bm25s retrieve": lambda query: peer.retrieve([tokens(clean(query))], k=K, show_progress=False),
    }
    for way in ways.values():
        way(queries[0])
    speed: dict[str, list[float]] = {name: [] for name in ways}
    many = max(1, compared // rounds)
    for turn in range(rounds):
        some = [queries[place % len(queries)] for place in range(turn * many, (turn + 1) * many)]
        for name, way in ways.items():
            seconds: list[float] = []
            for _ in range(5 if name in ("ours", "bm25s retrieve") else 1):  # the fast ones: too short to time once
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
    for name in ways:
        if name != "ours":
            ratios = [mine / theirs for mine, theirs in zip(speed["ours"], speed[name], strict=True)]
            goal = (">= 100", median(ratios) >= 100) if name.startswith("rank") else ("", None)
            figures.note(f"ratio: ours / {name}", "x", ratios, *goal, digits=1)
    row = {tool: place for place, tool in enumerate(ids)}
    same = [_same_top(ours.search([query], K)[0], rank, row, tokens(clean(query))) for query in queries[:compared]]
    figures.note("same top 10 as rank_bm25 (ties apart)", "share", [sum(same) / len(same)], "= 1", all(same))
    print(f"  {len(same)} queries compared, {sum(map(len, words)) / len(words):.1f} tokens a tool, ", end="")
    print(f"{np.mean([len(tokens(clean(query))) for query in queries[:compared]]):.1f} tokens a query")


def _same_top(ours: Ranking, rank: rank_bm25.BM25Plus, row: dict[str, int], words: list[str]) -> bool:
    """True where ours holds the peer's best scores, place by place, for tools that the peer scores the same."""
    scores = rank.get_scores(words)
    best = np.sort(scores)[::-1][:K]
    best = best[best > 0]
    theirs = scores[[row[tool] for tool in ours.ids]]
    return len(theirs) == len(best) and np.allclose(theirs, best, atol=CLOSE) and np.allclose(ours.scores, best)


def semantic(figures: Figures, index: Index, vectors: np.ndarray, queries: Sequence[str]) -> None:
    """One query end to end, and what of it is not the encoder."""
    figures.title("2. Dense and hybrid, one query at a time")
    dense = index.retriever("dense")
    assert isinstance(dense, Dense)
    ways: dict[str, Callable[[int], object]] = {
        "dense: search, end to end": lambda place: dense.search([queries[place]], K),
        "dense: search_vectors, without the encoder": lambda place: dense.search_vectors(vectors[place : place + 1], K),
        "hybrid: search, end to end": lambda place: index.retriever("hybrid").search([queries[place]], K),
    }
    for name, way in ways.items():
        way(0)
        seconds: list[float] = []
        for place in range(len(queries)):
            with clocked(seconds):
                way(place)
        figures.note(name, "ms", [1000 * value for value in seconds], digits=2)
        figures.note(f"{name}, 95th percentile", "ms", [1000 * float(np.quantile(seconds, 0.95))], digits=2)


def invention(number: int) -> tuple[Tool, str]:
    """A tool like no other, and a query that only it answers."""
    name = f"quaggaLedger{number}"
    text = f"Reconciles zebrafish invoices with the quagga ledger number {number} and mails the notary"
    return Tool(f"bench/{name}", name, text), f"reconcile zebrafish invoices with quagga ledger {number}"


def life(figures: Figures, index: Index, context: Context, adds: int, others: int) -> Index:
    """add, update and remove of one tool, in process: from the call to every retriever knowing. Returns the index."""
    figures.title("3. add, update, remove of one tool, model loaded: from the call until bm25, dense and hybrid know")
    for name in index.names:
        index.retriever(name).search(["warm up"], K)
    context_of = (index.folder, context)
    found: list[Tool] = []
    plain: list[dict[str, float]] = []
    folds: list[dict[str, float]] = []
    for number in range(adds):
        tool, query = invention(number)
        before = len(index.manifest.segments)
        index, times = _step(index, tool, query, lambda tool: add(context_of[0], [tool], context), True)
        (folds if len(index.manifest.segments) <= before else plain).append(times)
        found.append(tool)
    _stages(figures, "add", plain, "< 1 s")
    _stages(figures, "add that folds segments", folds, "")
    victims = list(index.tools.values())[:others]
    times_of: dict[str, list[dict[str, float]]] = {"update": [], "remove": []}
    for number, victim in enumerate(victims):
        tool, query = invention(1000 + number)
        changed = Tool(victim.id, tool.name, tool.description)
        index, times = _step(index, changed, query, lambda tool: add(context_of[0], [tool], context), True)
        times_of["update"].append(times)
    for number, tool in enumerate(found[:others]):
        query = invention(number)[1]
        index, times = _step(index, tool, query, lambda tool: remove(context_of[0], [tool.id], context), False)
        times_of["remove"].append(times)
    for name, listed in times_of.items():
        _stages(figures, name, listed, "< 1 s")
    return index


def _step(
    index: Index, tool: Tool, query: str, change: Callable[[Tool], object], there: bool
) -> tuple[Index, dict[str, float]]:
    """One change, timed by stage; fails where a retriever does not know of it afterwards."""
    names, seconds = ["call", "refresh", *index.names], list[float]()
    with clocked(seconds):
        change(tool)
    with clocked(seconds):
        index = index.refreshed()
    for name in index.names:
        with clocked(seconds):
            ids = index.retriever(name).search([query], K)[0].ids
        if (tool.id in ids) is not there:
            raise SystemExit(f"{name} {'does not find' if there else 'still finds'} {tool.id} after the change")
    return index, dict(zip(names, seconds, strict=True))


def _stages(figures: Figures, name: str, listed: Sequence[dict[str, float]], target: str) -> None:
    if not listed:
        return
    whole = [sum(times.values()) for times in listed]
    figures.note(f"{name}: whole", "s", whole, target, median(whole) < 1 if target else None)
    for stage in listed[0]:
        what = stage if stage in ("call", "refresh") else f"open and first search of {stage}"
        figures.note(f"  {name}: {what}", "s", [times[stage] for times in listed])


def loading(figures: Figures, folder: Path, repeats: int) -> None:
    """Opening the index in fresh processes, files in the page cache."""
    figures.title("4. Load, each time in a fresh process (files in the page cache)")
    child = [sys.executable, str(Path(__file__).with_name("scale_load.py")), str(folder)]
    for flags, times in (([], repeats), (["--model"], max(2, repeats // 2))):
        runs = [
            json.loads(subprocess.run([*child, *flags], check=True, capture_output=True, text=True).stdout)
            for _ in range(times)
        ]
        label = "with model" if flags else "no torch"
        if not flags and any(run["torch imported"] for run in runs):
            label = "torch imported (!)"
        ready = [run["Index()"] + sum(value for key, value in run.items() if key.startswith("open")) for run in runs]
        figures.note(f"{label}: Index() until all retrievers ready", "s", ready, "< 5 s", median(ready) < 5)
        for key in runs[0]:
            if key != "torch imported" and (not flags or "dense search" in key):
                unit = "MB" if key.startswith("MB") else "s"
                figures.note(f"  {label}: {key.removeprefix('MB ')}", unit, [run[key] for run in runs])
    held = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    figures.note("files of the index", "MB", [held], digits=1)


def approximate(figures: Figures, index: Index, queries: np.ndarray, repeats: int) -> None:
    """The HNSW graph that larger segments get, against exact search over the same vectors."""
    figures.title("5. Approximate (HNSW) against exact search over the same vectors")
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
        goal = (">= 0.98", share >= 0.98) if effort == settings.ann_effort else ("", None)
        figures.note(f"effort {effort}: recall@10", "share", [share], *goal, digits=4)
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
