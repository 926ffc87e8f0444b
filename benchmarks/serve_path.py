"""Measure the path that `configs/serve/sample.yaml` serves: detector, MassTool, and its rewriter on a managed vLLM.

    make demo-train && python benchmarks/serve_path.py          about 5 minutes on two cores without a GPU

Cold start: seconds from the command to the first raw answer, and to the first rewritten one. Latency of one client, in
turns: the raw ranking, the whole path with a new utterance, and the same again with its rewrite in the cache. Ratios
are against the raw ranking of the same run. Prints a table; `--out` writes JSON.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import islice
from pathlib import Path

from harness import FigureTable, machine, make_parser, write_json
from http_load import ChildProcess, load, percentile, utterances
from serve_rewriting import wait_for

CODE = "import sys; from pipelines.cli.main import serve; sys.exit(serve(sys.argv[1:]))"
DEADLINE_MS = 600_000
"""Long enough for every answer, so that no figure is one of a fallback."""


def main() -> None:
    """Start the server, wait for vLLM, and measure."""
    parser = make_parser(__doc__)
    parser.add_argument("--config", type=Path, default=Path("configs/serve/sample.yaml"))
    parser.add_argument("--requests", type=int, default=8, help="per round (8)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    values = {"port": 0, "deadline_ms": DEADLINE_MS, "max_deadline_ms": DEADLINE_MS, "detection_threshold": 0}
    words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    began, table = time.monotonic(), FigureTable()
    server = ChildProcess([sys.executable, "-c", CODE, str(options.config), *words])
    try:
        line = server.read_line()
        if "http://" not in line:
            sys.exit("the server does not start; `make demo-train` writes its index and its rewriter")
        port = int(line.split()[1].strip(",").rpartition(":")[2])
        table.title("cold start")
        search(port, next(utterances()), "off")
        table.note("first raw answer", "s", [time.monotonic() - began], digits=1)
        wait_for(f"http://127.0.0.1:{port}/readyz", '"rewriter":"ready"')
        search(port, next(utterances()), "on")
        table.note("first rewritten answer", "s", [time.monotonic() - began], digits=1)
        table.title("latency, one client")
        measure(port, options.rounds, options.requests, table)
    finally:
        server.end()
    write_json(options.out, {"rows": table.rows, "cores": os.cpu_count(), **machine()})


def search(port: int, text: str, rewrite: str) -> float:
    """Milliseconds of one request. `rewrite` is on or off; a fallback ends the measurement."""
    requests = iter([("POST", "/v1/search", {"utterance": text, "k": 10, "rewrite": rewrite})])
    figures = load(port, 1, DEADLINE_MS / 1000, requests, 1)
    if figures.fallbacks or set(figures.statuses) != {200}:
        sys.exit(f"not measured: statuses {dict(figures.statuses)}, fallbacks {dict(figures.fallbacks)}")
    return 1000 * figures.latencies[0]


def measure(port: int, rounds: int, requests: int, table: FigureTable) -> None:
    """Peers take turns, utterance by utterance; every peer has utterances of its own, except that a repeated one."""
    names = ("raw MassTool", "path, new utterance", "path, cached rewrite")
    medians: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        times: dict[str, list[float]] = {name: [] for name in names}
        for raw, new in zip(islice(utterances(), requests), islice(utterances(), requests), strict=True):
            for name, text, rewrite in zip(names, (raw, new, new), ("off", "on", "on"), strict=True):
                times[name].append(search(port, text, rewrite))
        for name in names:
            medians[name].append(percentile(times[name], 0.5))
    for name in names:
        table.note(f"p50, {name}", "ms", medians[name], digits=1)
    for name in names[1:]:
        table.note_ratio(f"{name} / raw MassTool", medians[name], medians[names[0]])


if __name__ == "__main__":
    main()
