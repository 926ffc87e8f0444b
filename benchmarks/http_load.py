"""Load on a server: `rewrite-serve` in a process of its own, and clients that send one request at a time each."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from pipelines.data.sample_data import sample_folder

ROOT = Path(__file__).parent.parent
SAMPLE_QUERIES = [json.loads(line)["text"] for line in (sample_folder() / "queries.jsonl").read_text().splitlines()]
NUMBERS = itertools.count(random.SystemRandom().randrange(10**6))
SERVE = "import sys; from pipelines.cli.main import serve; sys.exit(serve(sys.argv[1:]))"
Request = tuple[str, str, object]
"""Method, path and JSON body."""
After = Callable[[object, bytes], Awaitable[None]]
"""Work of the client on the answer to a body; its time counts."""


def utterances() -> Iterator[str]:
    """The sample's utterances, each with a new number."""
    return (f"{SAMPLE_QUERIES[number % len(SAMPLE_QUERIES)]} {number}" for number in NUMBERS)


def searches(**options: object) -> Iterator[Request]:
    """Search requests for the gateway."""
    return (("POST", "/v1/search", {"utterance": text, "k": 10, **options}) for text in utterances())


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share lies; NaN without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class ChildProcess:
    """A process that talks over standard input and output."""

    def __init__(self, command: list[str], new_session: bool = False, root: Path = ROOT, **environment: str) -> None:
        """`new_session`: a scheduler that shares time by sessions does not count it with us. `root`: whose code."""
        self.process = subprocess.Popen(
            command,
            cwd=root,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root), **environment},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=new_session,
        )

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def write_line(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)


class GatewayProcess(ChildProcess):
    """`rewrite-serve` with a config."""

    def __init__(
        self, folder: Path, config: dict[str, Any], spans: Path | None = None, root: Path = ROOT, handles: int = 0
    ) -> None:
        """`spans`: the file for the retriever's working times. `root`: whose code runs. `handles`: file handles that it
        may have; 0: as many as we have."""
        path = folder / f"serve-{time.monotonic_ns()}.yaml"
        path.write_text(yaml.safe_dump({"port": 0, "anonymous": ["search", "write"], **config}))
        watched = [str(Path(__file__).with_name("serve_watch.py")), "serve", str(spans)]
        command = [sys.executable, *(watched if spans else ("-c", SERVE)), str(path)]
        super().__init__(["prlimit", f"--nofile={handles}", *command] if handles else command, root=root)
        line = self.read_line()
        if "http://" not in line:
            sys.exit("the gateway does not start; is there an index? rewrite-index build configs/index/sample.yaml")
        self.port = int(line.split()[1].strip(",").rpartition(":")[2])

    def megabytes(self) -> float:
        return float(psutil.Process(self.process.pid).memory_info().rss) / 1e6

    def own_megabytes(self) -> float:
        """Memory without pages of mapped files, which the system takes back when it needs them; NaN elsewhere."""
        try:
            lines = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            return float("nan")
        return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith("Anonymous:")), float("nan"))

    def cpu_seconds(self) -> float:
        """CPU time of all threads, to the nanosecond where the system has it."""
        try:
            files = list(Path(f"/proc/{self.process.pid}/task").glob("*/schedstat"))
            return sum(int(file.read_text().split()[0]) for file in files) / 1e9
        except (OSError, ValueError, IndexError):
            times = psutil.Process(self.process.pid).cpu_times()
            return float(times.user + times.system)


class Exchange(NamedTuple):
    """One request with its answer, from the first byte out to the end of the client's work on the answer."""

    began: float
    ended: float
    body: Any
    answer: bytes


@dataclass
class LoadFigures:
    """Latencies and statuses of a round, or of several."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    rates: list[float] = field(default_factory=list)
    """Requests per second of every round."""
    exchanges: list[Exchange] = field(default_factory=list)
    """Of this round."""

    def add(self, other: LoadFigures) -> None:
        """Add a round."""
        self.rates.append(other.rate())
        self.seconds += other.seconds
        self.latencies += other.latencies
        self.statuses += other.statuses
        self.fallbacks += other.fallbacks

    def rate(self) -> float:
        """Requests per second without those that asked for a rewrite and got the raw ranking."""
        return (len(self.latencies) - self.fallbacks.total()) / self.seconds if self.seconds else 0.0

    def milliseconds(self, share: float) -> float:
        """A percentile of the latencies."""
        return 1000 * percentile(self.latencies, share)

    def summary(self) -> dict[str, object]:
        """For the JSON."""
        return {
            "requests": len(self.latencies),
            "per_second": round(self.rate(), 2),
            "per_second_by_round": [round(rate, 2) for rate in self.rates],
            **{f"p{round(100 * share)}_ms": round(self.milliseconds(share), 2) for share in (0.5, 0.95, 0.99)},
            "statuses": dict(self.statuses),
            "fallbacks": dict(self.fallbacks),
        }


def print_peers(name: str, peers: dict[str, LoadFigures]) -> None:
    """Print a line per peer, and the ratio of the first to the second."""
    for peer, figures in peers.items():
        latencies = "  ".join(f"{figures.milliseconds(share):8.1f}" for share in (0.5, 0.95, 0.99))
        errors = {status: count for status, count in figures.statuses.items() if status != 200}
        lost = f"{figures.fallbacks.total()} fell back, not in the rate" if figures.fallbacks else ""
        print(f"{name:24} {peer:10} {figures.rate():8.1f}/s  {latencies} ms  {lost} {errors or ''}")
    first, second = peers.values()
    if first.latencies and second.latencies:
        more = first.milliseconds(0.5) - second.milliseconds(0.5)
        print(f"{'':24} {'ratio':10} {first.rate() / second.rate():8.2f}    {more:+8.1f} ms p50", flush=True)


def load(
    port: int,
    clients: int,
    seconds: float,
    requests: Iterator[Request],
    max_requests: int = 1 << 60,
    after: After | None = None,
) -> LoadFigures:
    """Send requests from several clients at once, until the time or the requests are over."""
    figures, started = LoadFigures(), time.monotonic()
    left = itertools.count(max_requests, -1)

    def more() -> bool:
        return time.monotonic() - started < seconds and next(left) > 0

    async def run() -> None:
        await asyncio.gather(*(_client(port, requests, more, figures, after) for _ in range(clients)))

    asyncio.run(run())
    figures.seconds = time.monotonic() - started
    return figures


async def _client(
    port: int, requests: Iterator[Request], more: Callable[[], bool], figures: LoadFigures, after: After | None
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    while more():
        method, path, body = next(requests)
        data = b"" if body is None else json.dumps(body).encode()
        content_type = "Content-Type: application/json\r\n" if data else ""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{content_type}Content-Length: {len(data)}\r\n\r\n"
        began = time.monotonic()
        writer.write(head.encode() + data)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        answer = await reader.readexactly(int(lines.split("content-length:")[1].split("\r\n")[0]))
        if after is not None:
            await after(body, answer)
        ended = time.monotonic()
        figures.latencies.append(ended - began)
        figures.exchanges.append(Exchange(began, ended, body, answer))
        figures.statuses[int(lines.split()[1])] += 1
        if b'"fallback":{' in answer:
            figures.fallbacks[answer.split(b'"fallback":{"reason":"')[1].split(b'"')[0].decode()] += 1
    writer.close()
