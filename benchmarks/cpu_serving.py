"""Measure a server on a CPU without PyTorch, beside the same server on PyTorch: start, memory, latency.

    python benchmarks/cpu_serving.py [--tools 50000] [--clients 1 16] [--seconds 6] [--rounds 3] [--out FILE]

Both servers search the same dense index (most vectors derived: see synthetic.py), with new queries. PyTorch is hidden
from the first. Start: from the command to the answer of the first search.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import http_load
from harness import FigureTable, make_parser, write_json
from http_load import GatewayProcess, LoadFigures, load, searches
from synthetic import catalogues, fill_cache, make_tools

from pipelines.models import cache_folder, find_model
from retrievers.dense.encoder import RUNTIME, Encoder
from retrievers.index import build
from retrievers.kind import Context
from retrievers.settings import DenseSettings

OURS, PEER = "no PyTorch", "PyTorch"
HIDDEN = "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'sentence_transformers')))"
EMBEDDED = 400  # tools with real vectors
SHARES = (0.5, 0.99)


def main() -> None:
    """Build the index, then start and load both servers in turn."""
    parser = make_parser(__doc__)
    parser.add_argument("--tools", type=int, default=50_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    figures, starts, memory = FigureTable(), {OURS: [], PEER: []}, {OURS: [], PEER: []}
    loads = {clients: {OURS: LoadFigures(), PEER: LoadFigures()} for clients in options.clients}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        build_dense(folder, options.tools)
        for number in range(options.rounds):
            for name in (OURS, PEER) if number % 2 else (PEER, OURS):
                server, seconds = start(folder, name)
                starts[name].append(seconds)
                for clients in options.clients:
                    loads[clients][name].add(load(server.port, clients, options.seconds, searches()))
                memory[name].append(server.megabytes())
                server.end()
    figures.title(f"dense search over {options.tools:,} tools, load {os.getloadavg()[0]:.1f}")
    for name in (OURS, PEER):
        figures.note(f"{name}: start to first search", "s", starts[name], digits=1)
        figures.note(f"{name}: resident memory", "MB", memory[name], digits=0)
        for clients in options.clients:
            both = loads[clients][name]
            figures.note(f"{name}: {clients} clients, requests", "1/s", both.rates, digits=1)
            for share in SHARES:
                what = f"{name}: {clients} clients, p{100 * share:.0f}"
                figures.note(what, "ms", [both.milliseconds(share)], digits=1)
    figures.note_ratio("start, PyTorch / ours", starts[PEER], starts[OURS])
    figures.note_ratio("memory, PyTorch / ours", memory[PEER], memory[OURS])
    for clients in options.clients:
        ours, peer = loads[clients][OURS].rates, loads[clients][PEER].rates
        figures.note_ratio(f"requests, ours / PyTorch, {clients} clients", ours, peer)
        for share in SHARES:
            times = [[loads[clients][name].milliseconds(share)] for name in (PEER, OURS)]
            figures.note_ratio(f"p{100 * share:.0f}, PyTorch / ours, {clients} clients", *times)
    write_json(options.out, {"figures": figures.rows})


def build_dense(folder: Path, count: int) -> None:
    """A dense index whose vectors come from a cache."""
    encoder = Encoder(find_model(DenseSettings().model), 16, "cpu", cache_folder())
    tools = make_tools(catalogues(None), count)[0]
    fill_cache(tools, folder / "cache", encoder, EMBEDDED, 60)
    context = Context(find_model, folder / "cache", encoders={encoder.fingerprint: encoder})
    build(folder / "index", tools, {"dense": DenseSettings(ann_above=1 << 60)}, context)


def start(folder: Path, name: str) -> tuple[GatewayProcess, float]:
    """A server, once it has answered, and the seconds until then."""
    started, code = time.monotonic(), http_load.SERVE
    try:
        if name == OURS:
            http_load.SERVE = f"{HIDDEN}; {code}"
        os.environ[RUNTIME] = "auto" if name == OURS else "pytorch"
        server = GatewayProcess(folder, {"index": str(folder / "index"), "retriever": "dense"})
    finally:
        http_load.SERVE = code
        del os.environ[RUNTIME]
    load(server.port, 1, 60, searches(), max_requests=1)
    return server, time.monotonic() - started


if __name__ == "__main__":
    main()
