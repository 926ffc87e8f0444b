"""Measure an index of 50,000 tools: search against peers in the same run, load, memory, live changes.

    python benchmarks/index_scale.py [--tools 50000] [--data FOLDER] [--out results.json] [--work FOLDER]

The tools are real catalogues (BEIR folders under --data or $TOOLREWRITE_DATA, else the bundled sample) repeated with
variations, and most vectors are derived: see synthetic.py. OMP_NUM_THREADS sets the threads of dense search; BM25 and
its peers use one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness import FigureTable, clocked, machine, make_parser, write_json
from index_search import K, approximate, lexical, semantic
from synthetic import build_index, catalogues, make_queries, make_tools

from pipelines.search import ToolSearch
from retrievers.dense.retriever import Dense
from retrievers.index import Index, add, remove
from retrievers.kind import Context
from retrievers.types import Tool

LARGE = 20_000
"""From this many tools on, more rounds and more embedded documents."""
OPEN = """
import json, os, sys, time
from pathlib import Path
from pipelines.context import make_context
from pipelines.search import ToolSearch
from retrievers.index import Index
def megabytes(): return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
started, facts = time.perf_counter(), {}
index = Index(Path(sys.argv[1]), make_context())
for name in index.names: index.retriever(name)
facts["all retrievers ready, s"] = time.perf_counter() - started
ToolSearch(index, "bm25")
facts["ToolSearch ready, s"] = time.perf_counter() - started
facts["ready, MB"] = megabytes()
assert "torch" not in sys.modules
started = time.perf_counter()
index.retriever("dense").search(["find a flight to Athens"], 10)
facts["first dense search (loads torch and the model), s"] = time.perf_counter() - started
facts["with the model, MB"] = megabytes()
print(json.dumps(facts))
"""


def load_time(figures: FigureTable, folder: Path, repeats: int) -> None:
    """Open the index in fresh processes, its files in the page cache."""
    figures.title("3. Load, each time in a fresh process (files in the page cache)")
    command = [sys.executable, "-c", OPEN, str(folder)]
    runs = [json.loads(subprocess.run(command, check=True, stdout=-1, text=True).stdout) for _ in range(repeats)]
    for name in runs[0]:
        figures.note(*name.rsplit(", ", 1), [run[name] for run in runs])
    figures.note("files of the index", "MB", [sum(path.stat().st_size for path in folder.iterdir()) / 1e6], digits=1)


def invent_tool(number: int) -> tuple[Tool, str]:
    """A tool like no other, and a query that only it answers."""
    name = f"quaggaLedger{number}"
    text = f"Reconciles zebrafish invoices with the quagga ledger number {number} and mails the notary"
    return Tool(f"bench/{name}", name, text), f"reconcile zebrafish invoices with quagga ledger {number}"


def live_changes(figures: FigureTable, index: Index, context: Context, adds: int, others: int) -> None:
    """Add, update and remove single tools, from the call until every retriever knows."""
    figures.title("5. add, update, remove of one tool, model loaded: until bm25, dense and hybrid know")
    for name in index.names:
        index.retriever(name).search(["warm up"], K)
    folder = index.folder
    seconds: dict[str, list[tuple[float, float]]] = {"add": [], "update": [], "remove": []}
    victims = list(index.tools)[:others]
    for number in range(adds):
        tool, query = invent_tool(number)
        index, times = _change(index, tool, query, lambda tool: add(folder, [tool], context), True)
        seconds["add"].append(times)
    for number, victim in enumerate(victims):
        tool, query = invent_tool(1000 + number)
        changed = Tool(victim, tool.name, tool.description)
        index, times = _change(index, changed, query, lambda tool: add(folder, [tool], context), True)
        seconds["update"].append(times)
    for number in range(others):
        tool, query = invent_tool(number)
        index, times = _change(index, tool, query, lambda tool: remove(folder, [tool.id], context), False)
        seconds["remove"].append(times)
    for name, pairs in seconds.items():
        figures.note(f"{name}: bm25, dense and hybrid know", "s", [retrieved for retrieved, _ in pairs])
        figures.note(f"{name}: ToolSearch knows", "s", [searched for _, searched in pairs])


def _change(
    index: Index, tool: Tool, query: str, change: Callable[[Tool], object], present: bool
) -> tuple[Index, tuple[float, float]]:
    """Apply one change; seconds until the retrievers and until ToolSearch know. Fails if one of them does not."""
    seconds: list[float] = []
    with clocked(seconds):
        change(tool)
        index = index.latest()
        answers = {name: index.retriever(name).search([query], K)[0].ids for name in index.names}
    with clocked(seconds):
        answers["ToolSearch"] = ToolSearch(index, "hybrid").search([query], K)[0].ids
    for name, ids in answers.items():
        if (tool.id in ids) is not present:
            raise SystemExit(f"{name} {'does not find' if present else 'still finds'} {tool.id} after the change")
    return index, (seconds[0], sum(seconds))


def main() -> None:
    """Make the catalogue, build the index, measure, print."""
    parser = make_parser(__doc__)
    default = os.environ.get("TOOLREWRITE_DATA")
    parser.add_argument("--tools", type=int, default=50_000)
    parser.add_argument("--data", type=Path, default=Path(default) if default else None, help="folder of BEIR folders")
    parser.add_argument("--work", type=Path, help="keep the embeddings of the base here, for the next run")
    options = parser.parse_args()
    facts, figures, large = machine(), FigureTable(), options.tools >= LARGE
    print("\n".join(f"{name:<12} {value}" for name, value in facts.items()))
    sources = catalogues(options.data)
    tools, real = make_tools(sources, options.tools)
    queries = make_queries(sources, 400)
    print(f"{len(tools):,} tools, {real:,} of them real, from {', '.join(source.name for source in sources)}")
    with tempfile.TemporaryDirectory(prefix="index-scale-") as scratch:
        folder, cache = Path(scratch) / "index", options.work or Path(scratch) / "cache"
        index, context, seconds = build_index(folder, cache, tools, *((1500, 240) if large else (500, 15)))
        figures.title("0. Build")
        figures.note("build with every embedding in the cache", "s", [seconds], digits=1)
        dense = index.retriever("dense")
        assert isinstance(dense, Dense)
        vectors = dense._encoder.queries(queries[: 400 if large else 300])
        lexical(figures, index, queries, *((7, 10) if large else (5, 20)))
        semantic(figures, index, vectors, queries[: 150 if large else 60])
        load_time(figures, folder, 7 if large else 3)
        approximate(figures, index, vectors, 5)
        live_changes(figures, index, context, 13, 5 if large else 3)
    write_json(options.out, {"machine": facts, "tools": options.tools, "figures": figures.rows})


if __name__ == "__main__":
    main()
