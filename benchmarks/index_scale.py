"""How fast is an index of 50,000 tools? One command, a table, the peers measured in the same run.

python benchmarks/index_scale.py [--tools 50000] [--data FOLDER] [--out results.json] [--work FOLDER]

The tools are real catalogues (BEIR folders under --data or $TOOLREWRITE_DATA, else the bundled sample) repeated with
variations; see scale_data.py, also for where the vectors come from. Set OMP_NUM_THREADS to choose the threads of
dense search; BM25 and its peers use one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from scale_data import CUT, NOISE, Base, catalogues, fill_cache, make_queries, make_tools
from scale_figures import Figures, clocked
from scale_life import life, loading
from scale_speed import approximate, lexical, semantic

from pipelines.models import find_model
from retrievers.dense.encoder import Encoder
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.registry import RetrieverSettings
from retrievers.settings import BM25Settings, DenseSettings, HybridSettings
from retrievers.types import Tool

PACKAGES = ("numpy", "bm25s", "rank-bm25", "faiss-cpu", "torch", "sentence-transformers")
LARGE = 20_000
"""From this many tools on, time is spent generously."""


def main() -> None:
    """Makes the catalogue, builds the index, measures, prints."""
    options = _options()
    started = time.perf_counter()
    machine = _machine()
    print("\n".join(f"{name:<12} {value}" for name, value in machine.items()))
    with tempfile.TemporaryDirectory(prefix="index-scale-") as scratch:
        folder = Path(scratch) / "index"
        figures = _measure(options, folder, options.work or Path(scratch) / "cache")
    print(f"\nwhole run {time.perf_counter() - started:.0f} s, load average after {_load_average()}")
    if options.out:
        facts = {"machine": machine, "tools": options.tools, "figures": figures.rows}
        options.out.write_text(json.dumps(facts, indent=1) + "\n")


def _measure(options: argparse.Namespace, folder: Path, cache: Path) -> Figures:
    large = options.tools >= LARGE
    sources = catalogues(options.data)
    tools, real = make_tools(sources, options.tools)
    queries = make_queries(sources, 400)
    print(f"{'catalogue':<12} {len(tools):,} tools from {', '.join(source.name for source in sources)}: ", end="")
    print(f"{real:,} real, {len(tools) - real:,} variations; {len(queries)} queries")
    encoder = Encoder(find_model(DenseSettings().model), batch_size=16)
    context = Context(find_model, cache, encoders={encoder.fingerprint: encoder})
    base = fill_cache(tools, cache, encoder, 1500 if large else 500, 240 if large else 15)
    _explain(base)
    figures = Figures()
    _build(figures, folder, tools, context)
    index = Index(folder, context)
    vectors = encoder.queries(queries[: 400 if large else 300])
    lexical(figures, index, queries, *((7, 10) if large else (5, 20)), target=options.tools >= 50_000)
    semantic(figures, index, vectors, queries[: 150 if large else 60])
    loading(figures, folder, 7 if large else 3)
    approximate(figures, index, vectors, 5)
    life(figures, index, context, 13, 5 if large else 3)
    return figures


def _build(figures: Figures, folder: Path, tools: list[Tool], context: Context) -> None:
    figures.title("0. Build")
    seconds: list[float] = []
    retrievers: dict[str, RetrieverSettings] = {
        "bm25": BM25Settings(),
        "dense": DenseSettings(),
        "hybrid": HybridSettings(of=("bm25", "dense")),
    }
    with clocked(seconds):
        build(folder, tools, retrievers, context)
    figures.note("build with every embedding in the cache", "s", seconds, digits=1)


def _explain(base: Base) -> None:
    print(
        f"{'vectors':<12} {base.embedded} documents embedded (first {CUT} characters, {base.seconds:.0f} s); the other "
        f"{base.derived:,} are DERIVED, not embedded:\n{'':<12} a base vector plus noise of length {NOISE} "
        "(the difference of two others), renormalised. Query vectors are real."
    )


def _machine() -> dict[str, str]:
    facts = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next((line.partition(": ")[2] for line in facts.splitlines() if line.startswith("model name")), "")
    return {
        "machine": f"{model or platform.machine()}, {os.cpu_count()} cores, {platform.platform()}",
        "versions": f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "threads": f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}",
        "load average": _load_average(),
    }


def _load_average() -> str:
    return ", ".join(f"{value:.2f}" for value in os.getloadavg())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    named = os.environ.get("TOOLREWRITE_DATA")
    parser.add_argument("--tools", type=int, default=50_000)
    parser.add_argument("--data", type=Path, default=Path(named) if named else None, help="a folder of BEIR folders")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    parser.add_argument("--work", type=Path, help="keeps the embeddings of the base here, for the next run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
