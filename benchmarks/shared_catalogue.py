"""Compare two gateways on one PostgreSQL with one on a folder, in one run: search, live changes, starts, kill -9.

    OMP_NUM_THREADS=1 python benchmarks/shared_catalogue.py [--tools 50000] [--data FOLDER] [--work FOLDER]

PostgreSQL is that of Debian's packages, started here in a temporary folder, durable by default. Tools are real
catalogues repeated with variations, and most vectors are derived: see synthetic.py. Gateways are processes
(`rewrite-serve`); peers take turns, and every utterance is new. Prints a table, then JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
from harness import make_parser, write_json
from http_load import GatewayProcess, LoadFigures, load, searches
from synthetic import build_index, catalogues, make_tools

from pipelines.database.session import Database
from pipelines.database.settings import DatabaseSettings
from pipelines.database.transfer import push
from retrievers.index import Index

sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))
from postgres import Postgres

TOOL = {"name": "quaggaLedger", "description": "Reconciles zebrafish invoices with the quagga ledger."}
Facts = dict[str, Any]


class GatewayPeer:
    """A gateway and a client for it."""

    def __init__(self, folder: Path, config: Facts) -> None:
        began = time.monotonic()
        self.gateway = GatewayProcess(folder, {"retriever": "hybrid", "deadline_ms": 800, **config})
        self.start_seconds = time.monotonic() - began
        self.port = self.gateway.port
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60, trust_env=False)

    def put(self, tool: str) -> int:
        """Add a tool; returns the status."""
        return self.client.put(f"/v1/tools/{tool}", json={**TOOL, "name": f"quaggaLedger {tool}"}).status_code

    def has(self, tool: str) -> bool:
        return self.client.get(f"/v1/tools/{tool}").status_code == 200

    def state(self) -> tuple[int, str]:
        """Number of tools and fingerprint."""
        page = self.client.get("/v1/tools", params={"limit": 1}).json()
        return page["total"], page["fingerprint"]

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.gateway.process.pid).cpu_times()
        return float(times.user + times.system)

    def kill(self) -> None:
        self.gateway.process.kill()
        self.gateway.process.wait()


def wait_until(condition: Callable[[], bool], max_seconds: float = 60.0) -> float:
    """Return the seconds until the condition held."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > max_seconds:
            raise SystemExit(f"a condition did not hold within {max_seconds:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - began


def show(name: str, value: object) -> None:
    """Print a line of the table."""
    print(f"{name:58} {value}", flush=True)


def spread(name: str, seconds: Sequence[float]) -> Facts:
    """Show median and range."""
    facts = {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds), "times": len(seconds)}
    show(name, f"{facts['median']:8.3f} s  ({facts['min']:.3f}-{facts['max']:.3f}, {len(seconds)} times)")
    return facts


def search_speed(peers: dict[str, GatewayPeer], rounds: int, requests: int) -> Facts:
    """Search one at a time, and with eight clients; the peers in turn."""
    facts: Facts = {}
    for clients in (1, 8):
        figures = {name: LoadFigures() for name in peers}
        for peer in peers.values():
            load(peer.port, clients, 60, searches(rewrite="off"), 20)
        for _ in range(rounds):
            for name, peer in peers.items():
                figures[name].add(load(peer.port, clients, 600, searches(rewrite="off"), requests))
        for name, total in figures.items():
            p50, p95 = total.milliseconds(0.5), total.milliseconds(0.95)
            show(f"search, {clients} clients, {name}", f"p50 {p50:6.1f} ms  p95 {p95:6.1f} ms  {total.rate():.1f}/s")
            facts[f"{name}, {clients} clients"] = total.summary()
    return facts


def count_same_rankings(one: GatewayPeer, two: GatewayPeer, count: int = 60) -> str:
    """Count utterances with the same ten tools in the same order."""
    equal = 0
    for _, _, body in itertools.islice(searches(rewrite="off"), count):
        results = [peer.client.post("/v1/search", json=body).json()["results"][0]["tools"] for peer in (one, two)]
        first, second = ([tool["id"] for tool in tools] for tools in results)
        equal += first == second
    show("same ten tools in the same order", f"{equal} of {count} utterances")
    return f"{equal}/{count}"


def change_delay(one: GatewayPeer, two: GatewayPeer, times: int) -> Facts:
    """Change tools on one gateway; measure the time until the other has the change."""
    added, removed = list[float](), list[float]()
    before = one.cpu_seconds(), two.cpu_seconds()
    for number in range(times):
        tool = f"bench-{number}"
        for seconds, change, present in ((added, "put", True), (removed, "delete", False)):
            began, seen = time.monotonic(), list[float]()
            watcher = threading.Thread(target=_watch, args=(two.port, tool, present, seen))
            watcher.start()
            status = one.put(tool) if change == "put" else one.client.delete(f"/v1/tools/{tool}").status_code
            if status != 200:
                raise SystemExit(f"{change} of {tool}: status {status}")
            watcher.join()
            seconds.append(seen[0] - began)
    cpu = [(peer.cpu_seconds() - was) / (2 * times) for peer, was in zip((one, two), before, strict=True)]
    show("CPU per change, on the gateway called and on the other", f"{cpu[0]:.3f} s, {cpu[1]:.3f} s")
    return {
        "cpu_seconds": cpu,
        "added": spread("add: from the call until the other gateway has it", added),
        "removed": spread("remove: from the call until the other has it no more", removed),
    }


def _watch(port: int, tool: str, present: bool, seen: list[float]) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
        while (client.get(f"/v1/tools/{tool}").status_code == 200) is not present:
            time.sleep(0.02)
    seen.append(time.monotonic())


def write_until_killed(peer: GatewayPeer, prefix: str, kill: Callable[[], object]) -> list[str]:
    """Write one tool after the other while something is killed; returns the acknowledged ones."""
    acknowledged: list[str] = []

    def write() -> None:
        for number in range(200):
            try:
                if peer.put(f"{prefix}-{number}") != 200:
                    return
            except httpx.HTTPError:
                return
            acknowledged.append(f"{prefix}-{number}")

    writer = threading.Thread(target=write)
    writer.start()
    wait_until(lambda: len(acknowledged) >= 3)
    kill()
    writer.join()
    return acknowledged


def kills(folder: Path, config: Facts, one: GatewayPeer, two: GatewayPeer, postgres: Postgres) -> Facts:
    """kill -9 of a gateway, then of the database, each while tools are written."""
    tools = write_until_killed(one, "gateway-killed", one.kill)
    wait_until(lambda: all(two.has(tool) for tool in tools))
    show("gateway killed while it wrote", f"all {len(tools)} acknowledged tools are on the other")
    one = GatewayPeer(folder, config)
    show("the same gateway started again", f"{one.start_seconds:8.1f} s")
    if one.state() != two.state():
        raise SystemExit("the gateways differ")
    tools += write_until_killed(one, "database-killed", postgres.kill)
    figures = load(two.port, 1, 10, searches(rewrite="off"), 100)
    refused = two.client.put("/v1/tools/refused", json=TOOL)
    show("database killed: searches", f"p50 {figures.milliseconds(0.5):6.1f} ms, {dict(figures.statuses)}")
    show("database killed: a change", f"{refused.status_code}: {refused.json()['error']['message']}")
    began = time.monotonic()
    postgres.start()
    recovery = time.monotonic() - began
    accepted = wait_until(lambda: two.put("after") == 200)
    equal = wait_until(lambda: one.state() == two.state())
    lost = [tool for tool in tools if not (one.has(tool) and two.has(tool))]
    show("database up again (recovery)", f"{recovery:8.2f} s; a change accepted after {accepted:.2f} s more")
    show("both gateways the same", f"after {equal:.2f} s more; {len(lost)} of {len(tools)} tools lost")
    if lost or set(figures.statuses) != {200} or refused.status_code != 503:
        raise SystemExit("a tool was lost, a search failed, or a change was not refused")
    one.gateway.end()
    return {
        "restart_seconds": one.start_seconds,
        "database down": figures.summary(),
        "acknowledged": len(tools),
        "lost": len(lost),
        "recovery_seconds": recovery,
    }


def measure(options: argparse.Namespace, folder: Path, index: Index, postgres: Postgres) -> Facts:
    """Fill the database, start the gateways, measure."""
    os.environ["TOOLREWRITE_DATABASE"] = postgres.dsn
    began = time.monotonic()
    push(index, Database(DatabaseSettings(statement_seconds=120)))
    facts: Facts = {"push_seconds": time.monotonic() - began}
    show("rewrite-index push: folder -> database", f"{facts['push_seconds']:8.1f} s")
    shared: Facts = {"database": {}}
    on_folder, one, two = (GatewayPeer(folder, config) for config in ({"index": str(index.folder)}, shared, shared))
    peers = {"folder": on_folder, "database": one, "database, a second one": two}
    for name, peer in peers.items():
        facts[name] = {"start_seconds": peer.start_seconds, "memory_mb": peer.gateway.megabytes()}
        show(f"start of a gateway, {name}", f"{peer.start_seconds:8.1f} s, {peer.gateway.megabytes():.0f} MB")
    facts["same"] = count_same_rankings(on_folder, one)
    facts["search"] = search_speed({"folder": on_folder, "database": one}, options.rounds, options.requests)
    on_folder.gateway.end()
    facts["changes"] = change_delay(one, two, options.changes)
    facts["kills"] = kills(folder, shared, one, two, postgres)
    two.gateway.end()
    return facts


def main() -> None:
    """Make the catalogue, fill the database, measure."""
    parser = make_parser(__doc__)
    parser.add_argument("--tools", type=int, default=50_000)
    parser.add_argument("--data", type=Path, help="a folder of BEIR folders; without it the sample is varied")
    parser.add_argument("--work", type=Path, help="keep the embeddings of the base here, for the next run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=100, help="per round (100)")
    parser.add_argument("--changes", type=int, default=20)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="shared-") as scratch:
        folder = Path(scratch)
        tools, real = make_tools(catalogues(options.data), options.tools)
        print(f"{len(tools):,} tools, {real:,} of them real")
        index, _, _ = build_index(folder / "index", options.work or folder / "cache", tools, 1500, 240)
        postgres = Postgres()
        try:
            facts = {"tools": options.tools, **measure(options, folder, index, postgres)}
        finally:
            postgres.stop()
    print(json.dumps(facts))
    write_json(options.out, facts)


if __name__ == "__main__":
    main()
