"""Two gateways on one PostgreSQL against one on a folder, in one run: search, adds, starts, and kill -9 of everything.

    OMP_NUM_THREADS=1 python benchmarks/shared_catalogue.py [--tools 50000] [--data FOLDER] [--work FOLDER]

PostgreSQL is the one of Debian's packages, started here in a temporary folder, durable as it comes. Tools are real
catalogues repeated with variations, and most vectors are derived rather than embedded: see scale_data.py. Gateways are
processes (`rewrite-serve`); peers take turns, and every utterance is new. Prints a table, then JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import signal
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
from serve_clients import Figures, load
from serve_load import Gateway, searches
from synthetic import build_index, catalogues, make_tools

from pipelines.database.session import Database
from pipelines.database.settings import DatabaseSettings
from pipelines.database.transfer import push
from retrievers.index import Index

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from postgres import Postgres

TOOL = {"name": "quaggaLedger", "description": "Reconciles zebrafish invoices with the quagga ledger."}
Rows = dict[str, Any]


class Peer:
    """A gateway and a client for it."""

    def __init__(self, folder: Path, config: Rows) -> None:
        began = time.monotonic()
        self._process = Gateway(folder, {"retriever": "hybrid", "deadline_ms": 800, **config})
        self.started = time.monotonic() - began
        self.port, self.pid = self._process.port, self._process.process.pid
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60, trust_env=False)

    def put(self, tool: str) -> int:
        """Adds a tool; the status."""
        return self.client.put(f"/v1/tools/{tool}", json={**TOOL, "name": f"quaggaLedger {tool}"}).status_code

    def has(self, tool: str) -> bool:
        """Whether it is in this gateway's memory."""
        return self.client.get(f"/v1/tools/{tool}").status_code == 200

    def facts(self) -> tuple[int, str]:
        """Number of tools and fingerprint."""
        page = self.client.get("/v1/tools", params={"limit": 1}).json()
        return page["total"], page["fingerprint"]

    def megabytes(self) -> float:
        """Resident memory."""
        return float(psutil.Process(self.pid).memory_info().rss) / 1e6

    def cpu(self) -> float:
        """Seconds of a core so far: what a busy machine does not change."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def kill(self) -> None:
        """kill -9."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.process.wait()

    def end(self) -> None:
        """Politely."""
        self._process.end()


def until(holds: Callable[[], bool], most: float = 60.0) -> float:
    """Seconds until something held."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > most:
            raise SystemExit("it never came true")
        time.sleep(0.02)
    return time.monotonic() - began


def spread(name: str, seconds: Sequence[float]) -> Rows:
    """One line of the table."""
    ordered = sorted(seconds)
    middle, low, high = statistics.median(ordered), ordered[0], ordered[-1]
    print(f"{name:58} {middle:8.3f} s  ({low:.3f}-{high:.3f}, {len(ordered)} times)", flush=True)
    return {"median": round(middle, 4), "least": round(low, 4), "most": round(high, 4), "times": len(ordered)}


def speed(peers: dict[str, Peer], rounds: int, requests: int) -> Rows:
    """Searches one at a time, and of eight clients together; the peers in turn."""
    found: Rows = {}
    for clients in (1, 8):
        figures = {name: Figures() for name in peers}
        for peer in peers.values():
            load(peer.port, clients, 60, searches(rewrite="off"), most=20)
        for _ in range(rounds):
            for name, peer in peers.items():
                figures[name].add(load(peer.port, clients, 600, searches(rewrite="off"), most=requests))
        for name, each in figures.items():
            p50, p95 = each.percentile(0.5), each.percentile(0.95)
            print(
                f"{f'search, {clients} clients, {name}':58} p50 {p50:6.1f} ms  p95 {p95:6.1f} ms  {each.rate():.1f}/s"
            )
            found[f"{name}, {clients} clients"] = each.summary()
    return found


def same_rankings(one: Peer, two: Peer, count: int = 60) -> str:
    """How many utterances get the same ten tools, in the same order."""
    equal = 0
    for _, _, body in itertools.islice(searches(rewrite="off"), count):
        first, second = (
            [tool["id"] for tool in peer.client.post("/v1/search", json=body).json()["results"][0]["tools"]]
            for peer in (one, two)
        )
        equal += first == second
    print(f"{'same ten tools in the same order':58} {equal} of {count} utterances")
    return f"{equal}/{count}"


def news(one: Peer, two: Peer, times: int) -> Rows:
    """From the call on one gateway until the other can find it."""
    added, answered, removed = list[float](), list[float](), list[float]()
    before = one.cpu(), two.cpu()
    for number in range(times):
        tool = f"bench-{number}"
        began = time.monotonic()
        seen: list[float] = []
        watcher = threading.Thread(target=lambda tool=tool, seen=seen: seen.append(_watch(two, tool, True)))  # type: ignore[misc]
        watcher.start()
        if one.put(tool) != 200:
            raise SystemExit("a tool was not taken")
        answered.append(time.monotonic() - began)
        watcher.join()
        added.append(seen[0] - began)
        began = time.monotonic()
        one.client.delete(f"/v1/tools/{tool}")
        removed.append(_watch(two, tool, False) - began)
    used = [(peer.cpu() - was) / (2 * times) for peer, was in zip((one, two), before, strict=True)]
    told = f"{used[0]:8.3f} s where it was asked for, {used[1]:.3f} s on the other (answers to the watcher included)"
    print(f"{'CPU of an add or remove, on average':58} {told}")
    return {
        "cpu_seconds": [round(each, 3) for each in used],
        "answered": spread("add: answered, and found by the gateway asked", answered),
        "seen": spread("add: from the call until the other gateway finds it", added),
        "gone": spread("remove: from the call until the other has it no more", removed),
    }


def _watch(peer: Peer, tool: str, there: bool) -> float:
    with httpx.Client(base_url=f"http://127.0.0.1:{peer.port}", timeout=60, trust_env=False) as client:
        while (client.get(f"/v1/tools/{tool}").status_code == 200) is not there:
            time.sleep(0.02)
    return time.monotonic()


def write_until_dead(peer: Peer, prefix: str, kill: Callable[[], object], most: int) -> list[str]:
    """Writes one tool after the other while something is killed; those that were acknowledged."""
    taken: list[str] = []

    def write() -> None:
        for number in range(most):
            try:
                if peer.put(f"{prefix}-{number}") != 200:
                    return
            except httpx.HTTPError:
                return
            taken.append(f"{prefix}-{number}")

    writer = threading.Thread(target=write)
    writer.start()
    until(lambda: len(taken) >= 3)
    kill()
    writer.join()
    return taken


def kills(folder: Path, config: Rows, one: Peer, two: Peer, postgres: Postgres) -> Rows:
    """kill -9 of a gateway, then of the database, each while tools are being written."""
    found: Rows = {}
    taken = write_until_dead(one, "gateway-killed", one.kill, 200)
    until(lambda: all(two.has(tool) for tool in taken))
    one = Peer(folder, config)
    print(f"{'gateway killed while it wrote':58} {len(taken)} of {len(taken)} acknowledged tools are on the other")
    print(f"{'the same gateway started again':58} {one.started:8.1f} s")
    found |= {"acknowledged before the gateway died": len(taken), "restart_seconds": round(one.started, 2)}
    if one.facts() != two.facts():
        raise SystemExit("the gateways differ")
    taken += write_until_dead(one, "database-killed", postgres.kill, 200)
    figures = load(two.port, 1, 10, searches(rewrite="off"), most=100)
    refused = two.client.put("/v1/tools/nobody", json=TOOL)
    print(f"{'database killed: searches on':58} p50 {figures.percentile(0.5):6.1f} ms, {dict(figures.statuses)}")
    print(f"{'database killed: a change gets':58} {refused.status_code}: {refused.json()['error']['message']}")
    began = time.monotonic()
    postgres.start()
    up = time.monotonic() - began
    accepted = until(lambda: two.put("after") == 200)
    caught_up = until(lambda: one.facts() == two.facts())
    lost = [tool for tool in taken if not (one.has(tool) and two.has(tool))]
    print(f"{'database up again (recovery)':58} {up:8.2f} s; a change taken after {accepted:.2f} s more")
    print(f"{'both gateways the same':58} after {caught_up:.2f} s more; {len(lost)} of {len(taken)} tools lost")
    if lost or set(figures.statuses) != {200} or refused.status_code != 503:
        raise SystemExit("something was lost")
    one.end()
    return found | {
        "down": figures.summary(),
        "refused": refused.json()["error"],
        "acknowledged in all": len(taken),
        "lost": len(lost),
        "recovery_seconds": round(up, 2),
    }


def main() -> None:
    """Makes the catalogue, fills the database, measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=int, default=50_000)
    parser.add_argument("--data", type=Path, help="a folder of BEIR folders; without it the sample is varied")
    parser.add_argument("--work", type=Path, help="keeps the embeddings of the base here, for the next run")
    parser.add_argument("--embedding", type=float, default=240, metavar="S", help="for the base of the vectors (240)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=100, help="of a round (100)")
    parser.add_argument("--changes", type=int, default=20)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="shared-") as scratch:
        folder = Path(scratch)
        index = _index(options, folder, options.work or folder / "cache")
        postgres = Postgres()
        try:
            found = _measure(options, folder, index, postgres)
        finally:
            postgres.stop()
    print(json.dumps({"cores": os.cpu_count(), "load": os.getloadavg(), "tools": options.tools, **found}))


def _index(options: argparse.Namespace, folder: Path, cache: Path) -> Index:
    tools, real = make_tools(catalogues(options.data), options.tools)
    print(f"{len(tools):,} tools, {real:,} of them real")
    return build_index(folder / "index", cache, tools, 1500, options.embedding)[0]


def _measure(options: argparse.Namespace, folder: Path, index: Index, postgres: Postgres) -> Rows:
    os.environ["TOOLREWRITE_DATABASE"] = postgres.dsn
    began = time.monotonic()
    push(index, Database(DatabaseSettings(statement_seconds=120)))
    pushed = time.monotonic() - began
    print(f"{'rewrite-index push: folder -> database':58} {pushed:8.1f} s")
    shared: Rows = {"database": {}}
    on_folder = Peer(folder, {"index": str(index.folder)})
    one, two = Peer(folder, shared), Peer(folder, shared)
    starts = {"folder": on_folder.started, "database": one.started, "database, a second one": two.started}
    for name, seconds in starts.items():
        print(f"{f'start of a gateway, {name}':58} {seconds:8.1f} s")
    memory = {"folder": on_folder.megabytes(), "database": one.megabytes()}
    print(f"{'memory after the start':58} folder {memory['folder']:.0f} MB, database {memory['database']:.0f} MB")
    found: Rows = {"push_seconds": round(pushed, 1), "start_seconds": starts, "memory_mb": memory}
    found["same"] = same_rankings(on_folder, one)
    found["search"] = speed({"folder": on_folder, "database": one}, options.rounds, options.requests)
    on_folder.end()
    found["changes"] = news(one, two, options.changes)
    found["kills"] = kills(folder, shared, one, two, postgres)
    two.end()
    return found


if __name__ == "__main__":
    main()
