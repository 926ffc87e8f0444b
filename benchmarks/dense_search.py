"""Compare dense search with plain sentence-transformers: the same model, texts and queries, in one run.

    python benchmarks/dense_search.py [--tools 2000] [--queries 64] [--rounds 5] [--out results.json]

The peer is what its documentation shows: `encode` the corpus once, then `encode` a query and `util.semantic_search`.
They take turns, one query at a time and all in one call; every query is new to both. Also compared: whether the ten
tools are the same. Descriptions are cut (see synthetic.py), so that a small machine finishes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from harness import FigureTable, make_parser, take_turns, write_json
from sentence_transformers import SentenceTransformer, util
from synthetic import MAX_CHARACTERS, catalogues, make_queries, make_tools

from pipelines.context import make_context
from pipelines.models import find_model
from retrievers.index import Index, build
from retrievers.settings import DenseSettings
from retrievers.text import clean, document

K = 10
PEER = "sentence-transformers"
Search = Callable[[Sequence[str]], list[list[str]]]


def main() -> None:
    """Build both, search both in turn, print."""
    parser = make_parser(__doc__)
    parser.add_argument("--tools", type=int, default=2000)
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    sources, figures = catalogues(None), FigureTable()
    tools = [
        replace(tool, description=tool.description[:MAX_CHARACTERS]) for tool in make_tools(sources, options.tools)[0]
    ]
    queries = make_queries(sources, options.queries)
    with tempfile.TemporaryDirectory() as scratch:
        context = make_context("cpu")
        build(Path(scratch) / "index", tools, {"dense": DenseSettings()}, replace(context, cache=None))
        retriever = Index(Path(scratch) / "index", context).retriever("dense")
        model = SentenceTransformer(str(find_model(DenseSettings().model)), device="cpu", local_files_only=True)
        corpus = model.encode([clean(document(tool)) for tool in tools], convert_to_tensor=True)

        def ours(texts: Sequence[str]) -> list[list[str]]:
            return [list(ranking.ids) for ranking in retriever.search(texts, K)]

        def plain(texts: Sequence[str]) -> list[list[str]]:
            vectors = model.encode(list(texts), convert_to_tensor=True)
            hits = util.semantic_search(vectors, corpus, top_k=K)
            return [[tools[hit["corpus_id"]].id for hit in ranking] for ranking in hits]

        _compare(figures, {"ours": ours, PEER: plain}, queries, options.rounds)
    write_json(options.out, {"tools": len(tools), "figures": figures.rows})


def _compare(figures: FigureTable, searches: dict[str, Search], queries: Sequence[str], rounds: int) -> None:
    numbers = count()
    figures.title(f"Dense search, {len(queries)} queries per round")
    for label, batch in (("one query at a time", 1), ("all in one call", len(queries))):
        # The encoder caches recent queries: every round has new ones.
        fresh = [[f"{query} {next(numbers)}" for query in queries] for _ in range(rounds)]

        def run(search: Search, number: int, batch: int = batch, fresh: list[list[str]] = fresh) -> None:
            for start in range(0, len(queries), batch):
                search(fresh[number][start : start + batch])

        seconds = take_turns(
            {name: lambda number, search=search: run(search, number) for name, search in searches.items()}, rounds
        )
        for name, values in seconds.items():
            figures.note(f"{name}: {label}", "q/s", [len(queries) / value for value in values], digits=1)
        figures.note_ratio(f"ours / {PEER}, {label}", seconds[PEER], seconds["ours"])
    pairs = zip(searches["ours"](queries), searches[PEER](queries), strict=True)
    same = [set(ours) == set(theirs) for ours, theirs in pairs]
    figures.note("the same ten tools", "share", [sum(same) / len(same)])


if __name__ == "__main__":
    main()
