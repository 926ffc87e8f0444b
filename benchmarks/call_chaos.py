"""Call, search and change the catalogue while MCP servers are killed; count lost and doubled calls.

    python benchmarks/call_chaos.py --seconds 600 [--kill-every 20]

Every call has a number of its own, and the servers write the numbers of the calls that they begin. A call is lost if it
was answered and never began, or was not answered at all; doubled if it began twice. A call whose server was killed is
reported as one that may have been carried out, and is not repeated: calls are sent at most once. --out writes JSON.
With --utterances 20, more searches are made than are remembered (10,000), and memory must be flat beyond that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import psutil
from harness import machine, make_parser, write_json
from http_load import ROOT, ChildProcess, GatewayProcess
from mcp import Client

from pipelines.context import make_context
from pipelines.data.sample_data import sample_folder
from retrievers.catalogue import read_catalogue
from retrievers.index import build
from retrievers.settings import BM25Settings

SERVER = str(ROOT / "benchmarks" / "counting_server.py")
NAMES = ("first", "second", "remote")
CALLERS = 6
SEARCHERS = 2


class ChaosRun:
    """The load on one gateway, and its outcomes."""

    def __init__(self, gateway: GatewayProcess, options: argparse.Namespace) -> None:
        self.gateway, self.until = gateway, time.monotonic() + options.seconds
        self.kill_every: float = options.kill_every
        self.utterances = ["add two numbers"] * options.utterances
        self.url = f"http://127.0.0.1:{gateway.port}"
        self.outcomes: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.megabytes: list[float] = []

    @property
    def is_running(self) -> bool:
        return time.monotonic() < self.until

    async def call(self, caller: int) -> None:
        """Send numbered calls until the end, one after the other."""
        async with Client(f"{self.url}/mcp") as client:
            count = 0
            while self.is_running:
                number = f"{caller}-{count}"
                count += 1
                self.outcomes[number] = "unanswered"
                tool = f"{random.choice(NAMES)}/add"
                arguments = {"number": number, "values": [1, 2]}
                result = await client.call_tool("call_tool", {"id": tool, "arguments": arguments})
                text: str = result.content[0].text  # type: ignore[union-attr]
                self.outcomes[number] = "ok" if not result.is_error else text
                if not result.is_error and json.loads(text) != {"number": number, "sum": 3}:
                    self.counts["answer of another call"] += 1

    async def search(self) -> None:
        """Search until the end."""
        async with httpx2.AsyncClient(base_url=self.url, timeout=60) as client:
            while self.is_running:
                response = await client.post("/v1/search", json={"utterance": self.utterances, "k": 5})
                self.counts[f"search {response.status_code}"] += 1
                await asyncio.sleep(0.05)

    async def change(self) -> None:
        """Add and delete tools until the end."""
        async with httpx2.AsyncClient(base_url=self.url, timeout=60) as client:
            while self.is_running:
                name = f"passing-{random.randrange(50)}"
                body = {"name": name, "description": f"A passing tool, number {name}."}
                response = await client.put(f"/v1/tools/{name}", json=body)
                self.counts[f"change {response.status_code}"] += 1
                await client.delete(f"/v1/tools/{name}")
                await asyncio.sleep(0.5)

    async def kill(self) -> None:
        """Kill one server of the gateway at a time."""
        started = time.monotonic()
        while self.is_running:
            await asyncio.sleep(min(self.kill_every, max(0.0, self.until - time.monotonic())))
            children = [
                child
                for child in psutil.Process(self.gateway.process.pid).children(recursive=True)
                if "counting_server" in " ".join(child.cmdline())
            ]
            if children and self.is_running:
                os.kill(random.choice(children).pid, signal.SIGKILL)
                self.counts["kills"] += 1
            if time.monotonic() - started > 15:
                self.megabytes.append(self.gateway.megabytes())

    async def run(self) -> None:
        """Run everything to the end; an unfinished call counts as unanswered."""
        jobs = [*(self.call(caller) for caller in range(CALLERS)), *(self.search() for _ in range(SEARCHERS))]
        results = await asyncio.gather(*jobs, self.change(), self.kill(), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                self.counts[f"client failed: {type(result).__name__}"] += 1


def judge(outcomes: dict[str, str], began: Counter[str]) -> dict[str, int]:
    """Count calls by outcome, and those that break the promise."""
    figures: Counter[str] = Counter()
    for number, outcome in outcomes.items():
        times = began[number]
        kind = "ok" if outcome == "ok" else "not sent" if "not sent" in outcome else "other"
        if "may have been carried out" in outcome:
            kind = "in doubt"
        figures[kind] += 1
        figures["in doubt, carried out"] += kind == "in doubt" and times == 1
        figures["doubled"] += times > 1
        figures["lost"] += (
            (kind == "ok" and times != 1) or outcome == "unanswered" or (kind == "not sent" and times > 0)
        )
    return dict(figures)


def main() -> None:
    """Start the servers and the gateway, run, and compare."""
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="length of the run (120)")
    parser.add_argument("--kill-every", type=float, default=20.0, metavar="SECONDS", help="pause between kills (20)")
    parser.add_argument(
        "--utterances", type=int, default=1, metavar="N", help="utterances per search, each a search of its own (1)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder / "index", read_catalogue(sample_folder()), {"bm25": BM25Settings()}, make_context("cpu"))
        remote = ChildProcess([sys.executable, SERVER, "--http", str(folder / "remote")])
        sources: list[dict[str, Any]] = [
            {"name": name, "command": [sys.executable, SERVER, str(folder / name)]} for name in NAMES[:2]
        ]
        gateway = GatewayProcess(
            folder,
            {
                "index": str(folder / "index"),
                "anonymous": ["search", "call", "write"],
                "imports": {"hosts": ["127.0.0.1"], "allow_private": True},
                "trust": {"vetted": list(NAMES)},
                "mcp": [*sources, {"name": NAMES[2], "url": remote.read_line().strip()}],
            },
        )
        try:
            time.sleep(10.0)  # the lists must be read
            run = ChaosRun(gateway, options)
            asyncio.run(run.run())
        finally:
            gateway.end()
            remote.end()
        began: Counter[str] = Counter()
        for name in NAMES:
            began.update((folder / name).read_text().split() if (folder / name).exists() else [])
    figures = judge(run.outcomes, began)
    others = Counter(text for text in run.outcomes.values() if text != "ok").most_common(5)
    print(f"{len(run.outcomes)} calls: {figures}\n{dict(run.counts)}\nmessages: {others}")
    print(f"memory of the gateway, MB: {[round(value) for value in run.megabytes]}")
    write_json(options.out, {"machine": machine(), "calls": figures, "counts": run.counts, "megabytes": run.megabytes})
    sys.exit(bool(figures.get("lost") or figures.get("doubled")))


if __name__ == "__main__":
    main()
