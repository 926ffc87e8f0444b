"""Ten polite keys beside one hostile key: latency and losses of the polite, health checks, memory.

    python benchmarks/serve_fairness.py                                  every kind of attack, 1, 8 and 64 clients
    python benchmarks/serve_fairness.py --kinds amplification --before ../old    the same of another checkout, in turn
    python benchmarks/serve_fairness.py --soak 10                        minutes of all attacks at once

Polite clients send one search at a time, `--rate` per second each, and every utterance is new. Before each attack the
polite clients are measured alone, which gives the idle value. The attackers run in a process of their own
(hostile_clients.py), the server in another; on a small machine all share its cores. So a second server that is not
attacked has ten polite clients of its own at the same time: the ratio to it leaves out what attackers and other jobs
take of the processors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from harness import machine, make_parser, write_json
from hostile_clients import KINDS, WRITES, make_request, read_answer
from http_load import ROOT, ChildProcess, GatewayProcess, percentile, utterances

from pipelines.index.defaults import index_folder
from pipelines.serve.keys import make_key

HERE = Path(__file__).parent
NUM_POLITE = 10
PROBE_SECONDS = 0.25
WARM_UP = 20.0
"""Seconds of the soak before it is measured."""


@dataclass
class PoliteFigures:
    """Answers to polite clients and health checks during one round."""

    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    health: list[float] = field(default_factory=list)
    unhealthy: int = 0
    memory: list[float] = field(default_factory=list)
    """Megabytes of the server."""
    own_memory: list[float] = field(default_factory=list)
    """The same without pages of mapped files."""
    in_the_way: list[float] = field(default_factory=list)
    """CPU seconds of the server during each request."""

    def add(self, other: PoliteFigures) -> None:
        """Add a round."""
        self.latencies += other.latencies
        self.statuses += other.statuses
        self.health += other.health
        self.unhealthy += other.unhealthy
        self.memory += other.memory
        self.own_memory += other.own_memory
        self.in_the_way += other.in_the_way

    def lost(self) -> int:
        """Requests without a result."""
        return sum(count for status, count in self.statuses.items() if status != "200")

    def summary(self) -> dict[str, Any]:
        """For the table and the JSON."""
        return {
            "requests": self.statuses.total(),
            "lost": self.lost(),
            "statuses": dict(self.statuses),
            "p50_ms": round(1000 * percentile(self.latencies, 0.5), 1),
            "p99_ms": round(1000 * percentile(self.latencies, 0.99), 1),
            "health_p99_ms": round(1000 * percentile(self.health, 0.99), 1),
            "health_lost": self.unhealthy,
            "memory_mb": round(max(self.memory, default=0.0)),
            "own_memory_mb": round(max(filter(math.isfinite, self.own_memory), default=0.0)),
            "in_the_way_ms": [round(1000 * percentile(self.in_the_way, share), 1) for share in (0.5, 0.9, 0.99)],
        }


class FairnessServer(GatewayProcess):
    """A server with one hostile and ten polite keys."""

    def __init__(self, folder: Path, index: str, retriever: str, root: Path, handles: int = 0) -> None:
        """`root`: the checkout whose code is served; `handles`: file handles of the server, 0: as many as we have."""
        made = {
            name: make_key() for name in ("hostile", "writer", *(f"polite-{number}" for number in range(NUM_POLITE)))
        }
        scopes = {"writer": ["search", "write"]}
        keys = [
            {"name": name, "sha256": hashed, "scopes": scopes.get(name, ["search"])}
            for name, (_, hashed) in made.items()
        ]
        own = folder / f"index-{time.monotonic_ns()}"
        shutil.copytree(index_folder(index), own)  # some attacks write
        config = {"index": str(own), "retriever": retriever, "anonymous": [], "keys": keys}
        super().__init__(folder, config, root=root, handles=handles)
        self.keys = {name: key for name, (key, _) in made.items()}


async def measure_polite(server: FairnessServer, seconds: float, rate: float) -> PoliteFigures:
    """Let the polite clients and a health check run for some seconds."""
    figures, until = PoliteFigures(), time.monotonic() + seconds

    async def client(key: str) -> None:
        await asyncio.sleep(random.random() / rate)
        while time.monotonic() < until:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                try:
                    await search_at_rate(reader, writer, key)
                finally:
                    writer.close()
            except (OSError, EOFError) as error:
                if not isinstance(error, asyncio.IncompleteReadError) or error.partial:
                    figures.statuses["lost"] += 1

    async def search_at_rate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str) -> None:
        while time.monotonic() < until:
            request, used = make_request(key, {"utterance": next(utterances()), "k": 10}), server.cpu_seconds()
            began = time.monotonic()
            writer.write(request)
            status, _ = await read_answer(reader)
            seconds = time.monotonic() - began
            figures.latencies.append(seconds)
            figures.in_the_way.append(server.cpu_seconds() - used)
            figures.statuses[str(status)] += 1
            await asyncio.sleep(max(0.0, random.uniform(0.5, 1.5) / rate - seconds))

    async def probe() -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                async with asyncio.timeout(5):
                    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    status, _ = await read_answer(reader)
                    writer.close()
                    figures.unhealthy += status != 200
            except (OSError, EOFError, TimeoutError):
                figures.unhealthy += 1
            figures.health.append(time.monotonic() - began)
            figures.memory.append(server.megabytes())
            figures.own_memory.append(server.own_megabytes())
            await asyncio.sleep(PROBE_SECONDS)

    await asyncio.gather(probe(), *(client(server.keys[f"polite-{number}"]) for number in range(NUM_POLITE)))
    return figures


class HostileProcess(ChildProcess):
    """Attackers of one kind."""

    def __init__(self, kind: str, server: FairnessServer, clients: int) -> None:
        script = str(HERE / "hostile_clients.py")
        key = server.keys["writer" if kind in WRITES else "hostile"]
        super().__init__([sys.executable, script, kind, str(server.port), key, str(clients)])
        self.read_line()

    def finish(self) -> dict[str, Any]:
        """Stop the attack: what it got."""
        self.write_line("")
        figures: dict[str, Any] = json.loads(self.read_line())
        self.process.wait(60)
        return figures


async def measure_both(
    server: FairnessServer, control: FairnessServer, seconds: float, rate: float
) -> tuple[PoliteFigures, PoliteFigures]:
    """Let polite clients of both servers run at the same time."""
    return await asyncio.gather(measure_polite(server, seconds, rate), measure_polite(control, seconds, rate))


def measure_attack(
    server: FairnessServer, control: FairnessServer, kind: str, clients: int, options: argparse.Namespace
) -> dict[str, Any]:
    """The polite clients without an attack, then beside one; and what the attackers got."""
    idle, _ = asyncio.run(measure_both(server, control, options.seconds, options.rate))
    attackers = HostileProcess(kind, server, clients)
    time.sleep(options.warm_up)
    beside, unattacked = asyncio.run(measure_both(server, control, options.seconds, options.rate))
    figures = {"idle": idle, "beside": beside, "control": unattacked}
    return {name: one.summary() for name, one in figures.items()} | {"hostile": attackers.finish()}


def run_attacks(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Every kind of attack with every number of clients, for each checkout in turn."""
    rows = []
    for kind in options.kinds:
        for clients in options.clients:
            for name, root in options.roots.items():
                server, control = (
                    FairnessServer(folder, options.index, options.retriever, root, options.handles) for _ in range(2)
                )
                row = {"kind": kind, "clients": clients, "code": name}
                row |= measure_attack(server, control, kind, clients, options)
                server.end()
                control.end()
                rows.append(row)
                print_row(row)
    return rows


def print_row(row: dict[str, Any]) -> None:
    """Print one line of the table."""
    idle, beside, control, hostile = row["idle"], row["beside"], row["control"], row["hostile"]
    print(
        f"{row['kind']:14} {row['clients']:3} {row['code']:6} polite p50 {idle['p50_ms']:7} -> {beside['p50_ms']:8}  "
        f"p99 {idle['p99_ms']:7} -> {beside['p99_ms']:8} ms (x{beside['p99_ms'] / idle['p99_ms']:.1f}; not attacked "
        f"{control['p50_ms']}, {control['p99_ms']}, x{beside['p99_ms'] / control['p99_ms']:.1f})  "
        f"in the way {idle['in_the_way_ms']} -> {beside['in_the_way_ms']} ms  "
        f"lost {beside['lost']} of {beside['requests']}  health p99 {beside['health_p99_ms']} ms, "
        f"lost {beside['health_lost']}  {beside['memory_mb']} MB  hostile {hostile['statuses']}, "
        f"largest {hostile['largest']:,} bytes",
        flush=True,
    )


def run_soak(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All attacks at once: losses of the polite, and memory of the first and the last third."""
    server, control = (
        FairnessServer(folder, options.index, options.retriever, ROOT, options.handles) for _ in range(2)
    )
    idle, _ = asyncio.run(measure_both(server, control, options.seconds, options.rate))
    attackers = {kind: HostileProcess(kind, server, options.soak_clients) for kind in options.kinds}
    asyncio.run(measure_polite(server, WARM_UP, options.rate))  # before memory is measured
    total, unattacked, started = PoliteFigures(), PoliteFigures(), time.monotonic()
    while (left := 60 * options.soak - (time.monotonic() - started)) > 0:
        figures, others = asyncio.run(measure_both(server, control, min(20.0, left), options.rate))
        total.add(figures)
        unattacked.add(others)
        print(f"{(time.monotonic() - started) / 60:5.1f} min", json.dumps(figures.summary()), flush=True)
        print("not attacked", json.dumps(others.summary()), flush=True)
    hostile = {kind: process.finish() for kind, process in attackers.items()}
    third = max(1, len(total.memory) // 3)
    parts = {"memory_thirds_mb": total.memory, "own_memory_thirds_mb": total.own_memory}
    memory = {
        name: [round(statistics.mean(part), 1) for part in (values[:third], values[-third:])]
        for name, values in parts.items()
    }
    handles = psutil.Process(server.process.pid).num_fds()
    server.end()
    control.end()
    figures_by_name = {"idle": idle, "soak": total, "control": unattacked}
    result: dict[str, Any] = {name: one.summary() for name, one in figures_by_name.items()}
    result |= {**memory, "handles": handles, "hostile": hostile}
    print(json.dumps(result))
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the flags ask for."""
    parser = make_parser(__doc__)
    parser.add_argument("--index", default="bundled:sample")
    parser.add_argument("--retriever", default="auto")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rate", type=float, default=2.0, help="searches per second of a polite client (2)")
    parser.add_argument("--seconds", type=float, default=10.0, help="per round (10)")
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds of attack before measuring (2)")
    parser.add_argument("--handles", type=int, default=0, help="file handles of the server; 0: as many as we have")
    parser.add_argument("--before", type=Path, help="another checkout to measure in turn")
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="all attacks at once instead")
    parser.add_argument("--soak-clients", type=int, default=4, help="clients per kind of attack (4)")
    options = parser.parse_args(arguments)
    options.roots = ({"before": options.before.resolve()} if options.before else {}) | {"now": ROOT}
    with tempfile.TemporaryDirectory() as folder:
        run = run_soak if options.soak else run_attacks
        results = {"machine": machine(), "results": run(options, Path(folder))}
    write_json(options.out, results)


if __name__ == "__main__":
    main()
