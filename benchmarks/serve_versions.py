"""Two checkouts of the server side by side: is the newer one slower for a caller without others?

    python benchmarks/serve_versions.py --before ../old --retriever bm25

Both servers run all the time. One client sends each search to both, one after the other and the order by turns, so that
other jobs of the machine slow down both alike: the ratio of the medians, with a bootstrap interval. Then several
clients load one server at a time in short rounds, by turns: the median ratio of neighbouring rounds, and the CPU time
per answer, which hardly depends on other jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from harness import machine, make_parser, write_json
from hostile_clients import make_request, read_answer
from http_load import ROOT, GatewayProcess, load, percentile, searches, utterances

RESAMPLES = 300
WARM_UP = 200
"""Searches per server before anything is measured."""
RATE_ROUND = 1.0
"""Seconds of a round of load."""


def cpu_seconds(server: GatewayProcess) -> float:
    """CPU time that the server has used."""
    times = psutil.Process(server.process.pid).cpu_times()
    return float(times.user + times.system)


async def alternate(servers: dict[str, GatewayProcess], num_searches: int) -> dict[str, list[float]]:
    """Send each search to every server: seconds by server."""
    ends = {name: await asyncio.open_connection("127.0.0.1", server.port) for name, server in servers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in servers}
    texts = utterances()
    for number in range(num_searches):
        request = make_request("", {"utterance": next(texts), "k": 10}).replace(b"Authorization: Bearer \r\n", b"")
        for name in sorted(ends, reverse=bool(number % 2)):
            reader, writer = ends[name]
            began = time.perf_counter()
            writer.write(request)
            status, _ = await read_answer(reader)
            seconds[name].append(time.perf_counter() - began)
            assert status == 200, f"{name} answered {status}"
    for _, writer in ends.values():
        writer.close()
    return seconds


def ratio_interval(before: Sequence[float], now: Sequence[float]) -> tuple[float, float, float]:
    """The ratio of the medians, now by before, and its bootstrap interval of 95 %, over the same searches."""
    pairs, chance = list(zip(before, now, strict=True)), random.Random(0)

    def ratio(sample: Sequence[tuple[float, float]]) -> float:
        return statistics.median(one for _, one in sample) / statistics.median(one for one, _ in sample)

    ratios = sorted(ratio(chance.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return ratio(pairs), ratios[int(0.025 * RESAMPLES)], ratios[int(0.975 * RESAMPLES)]


def compare_latency(servers: dict[str, GatewayProcess], options: argparse.Namespace) -> dict[str, Any]:
    """One client: latency of each server, and their ratio."""
    began = {name: cpu_seconds(server) for name, server in servers.items()}
    seconds = asyncio.run(alternate(servers, options.searches))
    result: dict[str, Any] = {
        name: {
            **{f"p{share}_ms": round(1000 * percentile(seconds[name], share / 100), 3) for share in (50, 90, 99)},
            "cpu_ms": round(1000 * (cpu_seconds(server) - began[name]) / options.searches, 3),
        }
        for name, server in servers.items()
    }
    ratios = ratio_interval(seconds["before"], seconds["now"])
    return result | {"ratio": dict(zip(("p50", "low", "high"), (round(value, 4) for value in ratios), strict=True))}


def compare_rates(servers: dict[str, GatewayProcess], clients: int, rounds: int) -> dict[str, Any]:
    """Several clients without a pause: answers per second and CPU time per answer of each server, by turns."""
    rates: dict[str, list[float]] = {name: [] for name in servers}
    costs: dict[str, list[float]] = {name: [] for name in servers}
    for number in range(rounds):
        for name in sorted(servers, reverse=bool(number % 2)):
            began = cpu_seconds(servers[name])
            figures = load(servers[name].port, clients, RATE_ROUND, searches())
            rates[name].append(figures.statuses[200] / figures.seconds)
            costs[name].append((cpu_seconds(servers[name]) - began) / figures.statuses[200])
    pairs = list(zip(rates["before"], rates["now"], strict=True))
    return {
        **{
            name: {
                "per_second": round(statistics.median(rates[name]), 1),
                "cpu_ms": round(1000 * statistics.median(costs[name]), 3),
            }
            for name in servers
        },
        "ratio": round(statistics.median(now / before for before, now in pairs), 4),
        "cpu_ratio": round(statistics.median(costs["now"]) / statistics.median(costs["before"]), 4),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare two checkouts."""
    parser = make_parser(__doc__)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--index", default="bundled:sample")
    parser.add_argument("--retriever", default="auto")
    parser.add_argument("--searches", type=int, default=4_000, help="of the one client, per server (4,000)")
    parser.add_argument("--clients", type=int, nargs="*", default=[8], help="clients of the load (8)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of a second per server and load (20)")
    options = parser.parse_args(arguments)
    config = {"index": options.index, "retriever": options.retriever}
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        roots = {"before": options.before.resolve(), "now": ROOT}
        servers = {name: GatewayProcess(Path(folder), config, root=root) for name, root in roots.items()}
        asyncio.run(alternate(servers, WARM_UP))
        results["1 client"] = compare_latency(servers, options)
        print("1 client", json.dumps(results["1 client"]), flush=True)
        for clients in options.clients:
            results[f"{clients} clients"] = compare_rates(servers, clients, options.rounds)
            print(f"{clients} clients", json.dumps(results[f"{clients} clients"]), flush=True)
        for server in servers.values():
            server.end()
    write_json(options.out, {"machine": machine(), "results": results})


if __name__ == "__main__":
    main()
