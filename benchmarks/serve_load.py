"""Compare the gateway with the bare retriever in a process of its own, and with bare vLLM, in one run.

    rewrite-index build configs/index/sample.yaml
    python benchmarks/serve_load.py                                      about 4 minutes
    python benchmarks/serve_load.py --rewriter runs/sample/sft           about 25 minutes on two cores without a GPU
    python benchmarks/serve_load.py --soak 10                            minutes of mixed load: errors and memory

Peers take turns, round by round. Every utterance is new, so that no cache of vectors or rewrites helps. Clients run in
this process, the server in another; on a small machine they share its cores. Prints a table, then JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import make_parser, write_json
from http_load import ChildProcess, GatewayProcess, LoadFigures, Request, load, print_peers, searches, utterances
from serve_rewriting import measure_rewriting

from pipelines.context import make_context
from retrievers.index import Index

BARE = """
import sys, json, time, threading
from pathlib import Path
from pipelines.context import make_context
from retrievers.index import Index
retriever = Index(Path(sys.argv[1]), make_context("cpu")).retriever(sys.argv[2])
retriever.search(["weather"], 10)
print("ready", flush=True)
for line in sys.stdin:
    clients, seconds, texts = json.loads(line)
    texts, latencies, started = iter(texts), [], time.monotonic()
    def search():
        while time.monotonic() - started < seconds and (text := next(texts, None)) is not None:
            began = time.monotonic()
            retriever.search([text], 10)
            latencies.append(time.monotonic() - began)
    threads = [threading.Thread(target=search) for _ in range(clients)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(json.dumps([time.monotonic() - started, latencies]), flush=True)
"""


def measure_raw(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, LoadFigures]]:
    """Compare the gateway without a rewriter with the retriever without a gateway."""
    gateway = GatewayProcess(folder, {"index": options.index, "retriever": options.retriever})
    bare = ChildProcess([sys.executable, "-c", BARE, options.index, options.retriever])
    bare.read_line()
    results = {}
    for clients in options.clients:
        peers = {"gateway": LoadFigures(), "bare": LoadFigures()}
        for _ in range(options.rounds):
            peers["gateway"].add(load(gateway.port, clients, options.seconds, searches(rewrite="off")))
            texts = list(itertools.islice(utterances(), int(2000 * options.seconds)))
            bare.write_line(json.dumps([clients, options.seconds, texts]))
            peers["bare"].add(LoadFigures(*json.loads(bare.read_line())))
        results[f"raw, {clients} clients"] = peers
        print_peers(f"raw, {clients} clients", peers)
    gateway.end()
    bare.end()
    return results


def mixed_requests(seed: int, known: list[str]) -> Iterator[Request]:
    """Random requests of every sort. `known`: tools to confirm, which no request removes."""
    rng, texts = random.Random(seed), utterances()
    while True:
        tool = f"soak/tool-{rng.randrange(50)}"
        draw = rng.random()
        if draw < 0.70:
            yield "POST", "/v1/search", {"utterance": next(texts), "k": rng.choice([1, 5, 10, 50])}
        elif draw < 0.76:
            yield "POST", "/v1/search", {"utterance": [next(texts) for _ in range(rng.randint(2, 8))]}
        elif draw < 0.82:
            yield "POST", "/v1/search", {"utterance": next(texts), "filters": {"category": ["Weather", "Travel"]}}
        elif draw < 0.88:
            yield "PUT", f"/v1/tools/{tool}", {"name": f"soak{rng.randrange(10**6)}", "description": next(texts)}
        elif draw < 0.92:
            yield "DELETE", f"/v1/tools/{tool}", None
        elif draw < 0.94:
            yield "GET", f"/v1/tools?limit=20&after={rng.choice('abcdefgh')}", None
        elif draw < 0.96:
            yield "POST", "/v1/feedback", {"utterance": next(texts), "tools": [rng.choice(known)]}
        elif draw < 0.98:
            yield "GET", "/metrics", None
        else:
            yield "GET", f"/v1/tools/{tool}", None


def soak(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Count statuses other than 200, 404 (an unknown tool) and 429, and compare the memory of first and last third."""
    shutil.copytree(options.index, folder / "index")
    config = {"index": str(folder / "index"), "retriever": options.retriever, "feedback": str(folder / "feedback")}
    known = list(Index(folder / "index", make_context("cpu")).tools)
    gateway = GatewayProcess(folder, config)
    load(gateway.port, 4, 20, mixed_requests(0, known))  # warm up before memory is measured
    total, memory = LoadFigures(), list[float]()
    started = time.monotonic()
    for number in itertools.count(1):
        left = 60 * options.soak - (time.monotonic() - started)
        if left <= 0:
            break
        total.add(load(gateway.port, 8, min(10.0, left), mixed_requests(number, known)))
        memory.append(gateway.megabytes())
        print(f"{(time.monotonic() - started) / 60:5.1f} min  {len(total.latencies):7} requests  {memory[-1]:7.1f} MB")
    gateway.end()
    third = max(1, len(memory) // 3)
    first, last = statistics.mean(memory[:third]), statistics.mean(memory[-third:])
    errors = sum(count for status, count in total.statuses.items() if status not in (200, 404, 429))
    print(
        f"{errors} errors, memory {first:.1f} MB in the first third, {last:.1f} in the last ({last / first - 1:+.1%})"
    )
    return {"soak": total.summary(), "errors": errors, "memory_mb": {"first_third": first, "last_third": last}}


def main() -> None:
    """Run what the flags ask for."""
    parser = make_parser(__doc__)
    parser.add_argument("--index", default="runs/sample/index")
    parser.add_argument("--retriever", default="dense")
    parser.add_argument("--rewriter", help="a rewriter's folder: also measure with rewriting")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=12.0, help="per round (12)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rewrites", type=int, default=48, help="requests per round with rewriting (48)")
    parser.add_argument("--rewriting-clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--answer-tokens", type=int, default=48, help="of a rewrite at most (48)")
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="mixed load instead")
    options = parser.parse_args()
    results: dict[str, Any] = {"cores": os.cpu_count(), "retriever": options.retriever}
    with tempfile.TemporaryDirectory() as folder:
        if options.soak:
            results |= soak(options, Path(folder))
        else:
            peers = measure_raw(options, Path(folder))
            if options.rewriter:
                with_rewrites, results["own"] = measure_rewriting(options, Path(folder))
                peers |= with_rewrites
            for name, both in peers.items():
                results[name] = {peer: figures.summary() for peer, figures in both.items()}
    results["load"] = os.getloadavg()
    print(json.dumps(results))
    write_json(options.out, results)


if __name__ == "__main__":
    main()
