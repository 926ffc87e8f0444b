"""Dense search against plain sentence-transformers: the same model, texts and queries, in one run on one machine.

    python benchmarks/dense_search.py [--tools 2000] [--queries 64] [--rounds 5] [--out results.json]

The peer is what its documentation shows: `encode` the corpus once, then `encode` a query and `util.semantic_search`.
They take turns, one query at a time and all in one call; every query is new to both. Also compared: whether the ten
tools are the same. Documents are cut to their first characters, so that a small machine gets done (see scale_data.py).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from scale_data import CUT, catalogues, make_queries, make_tools
from scale_figures import Figures
from sentence_transformers import SentenceTransformer, util

from pipelines.context import make_context
from pipelines.models import find_model
from retrievers.index import Index, build
from retrievers.settings import DenseSettings
from retrievers.text import clean, document

K = 10
Search = Callable[[Sequence[str]], list[list[str]]]


def main() -> None:
    """Builds both, asks both in turn, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=int, default=2000)
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    sources = catalogues(None)
    tools = [replace(each, description=each.description[:CUT]) for each in make_tools(sources, options.tools)[0]]
    queries = make_queries(sources, options.queries)
    figures = Figures()
    with tempfile.TemporaryDirectory() as scratch:
        context = make_context("cpu")
        build(Path(scratch) / "index", tools, {"dense": DenseSettings()}, replace(context, cache=None))
        retriever = Index(Path(scratch) / "index", context).retriever("dense")
        model = SentenceTransformer(str(find_model("bundled:minilm")), device="cpu", local_files_only=True)
        ids = [tool.id for tool in tools]
        corpus = model.encode([clean(document(tool)) for tool in tools], convert_to_tensor=True)

        def ours(texts: Sequence[str]) -> list[list[str]]:
            return [list(ranking.ids) for ranking in retriever.search(texts, K)]

        def plain(texts: Sequence[str]) -> list[list[str]]:
            asked = model.encode(list(texts), convert_to_tensor=True)
            return [[ids[hit["corpus_id"]] for hit in hits] for hits in util.semantic_search(asked, corpus, top_k=K)]

        _compare(figures, ours, plain, queries, options.rounds)
    if options.out:
        options.out.write_text(json.dumps({"tools": len(tools), "figures": figures.rows}, indent=1) + "\n")


def _compare(figures: Figures, ours: Search, plain: Search, queries: Sequence[str], rounds: int) -> None:
    number = count()
    figures.title(f"Dense search, {len(queries)} queries a round")
    for label, batch in (("one query at a time", 1), ("all in one call", len(queries))):
        rates: dict[str, list[float]] = {"ours": [], "sentence-transformers": []}
        ways = {"ours": ours, "sentence-transformers": plain}
        for turn in range(rounds):
            fresh = [f"{query} {next(number)}" for query in queries]  # the encoder remembers recent ones
            for name in sorted(ways, reverse=bool(turn % 2)):
                started = time.perf_counter()
                for start in range(0, len(fresh), batch):
                    ways[name](fresh[start : start + batch])
                rates[name].append(len(fresh) / (time.perf_counter() - started))
        for name, values in rates.items():
            figures.note(f"{name}: {label}", "q/s", values, digits=1)
        both = zip(rates["ours"], rates["sentence-transformers"], strict=True)
        figures.note(f"ratio: ours / sentence-transformers, {label}", "x", [a / b for a, b in both], digits=2)
    same = [set(a) == set(b) for a, b in zip(ours(queries), plain(queries), strict=True)]
    figures.note("the same ten tools", "share", [sum(same) / len(same)])


if __name__ == "__main__":
    main()
