"""What the gateway costs: against the bare retriever in a process of its own, and against bare vLLM, in one run.

    rewrite-index build configs/index/sample.yaml
    python benchmarks/serve_load.py                                      about 4 minutes
    python benchmarks/serve_load.py --rewriter runs/sample/sft           about 25 minutes on two cores without a GPU
    python benchmarks/serve_load.py --soak 10 [--rewriter runs/sample/sft]

Peers take turns, round by round. Every utterance is new, so that no cache of vectors or rewrites helps anybody. Clients
run in this process, the server in another; on a small machine they share its cores. Prints a table, then JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml
from serve_clients import Figures, Request, load

from pipelines.data.sample_data import sample_folder

ROOT = Path(__file__).parent.parent
SAID = [json.loads(line)["text"] for line in (sample_folder() / "queries.jsonl").read_text().splitlines()]
NUMBERS = itertools.count(random.SystemRandom().randrange(10**6))


def utterances() -> Iterator[str]:
    """The sample's own, each with a number that nobody has seen."""
    return (f"{SAID[number % len(SAID)]} {number}" for number in NUMBERS)


class Child:
    """A process of ours and its first line; all of it ends with this one."""

    def __init__(self, command: list[str], apart: bool = False, **environment: str) -> None:
        """`apart`: in a session of its own, so that a scheduler that shares by sessions does not count it with us."""
        settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=settings,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=apart,
        )

    def line(self) -> str:
        """The next line that it says."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def say(self, line: str) -> None:
        """A line to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait(60)


class Gateway(Child):
    """`rewrite-serve` with a config."""

    def __init__(self, folder: Path, config: dict[str, Any], spans: Path | None = None) -> None:
        """`spans`: where to note what its retriever does when."""
        path = folder / f"serve-{time.monotonic_ns()}.yaml"
        path.write_text(yaml.safe_dump({"port": 0, "anonymous": ["search", "write"], **config}))
        code = "import sys; from pipelines.cli.main import serve; sys.exit(serve(sys.argv[1:]))"
        watched = [str(Path(__file__).with_name("serve_watch.py")), "serve", str(spans)]
        super().__init__([sys.executable, *(watched if spans else ("-c", code)), str(path)])
        said = self.line()
        if "http://" not in said:
            sys.exit("the gateway does not start; is there an index? rewrite-index build configs/index/sample.yaml")
        self.port = int(said.split()[1].strip(",").rpartition(":")[2])

    def memory(self) -> float:
        """Megabytes."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / 1e6


BARE = """
import sys, json, time, threading
from pathlib import Path
from pipelines.index.build import make_context
from retrievers.index import Index
retriever = Index(Path(sys.argv[1]), make_context("cpu")).retriever(sys.argv[2])
retriever.search(["weather"], 10)
print("ready", flush=True)
for line in sys.stdin:
    clients, seconds, texts = json.loads(line)
    texts, found, started = iter(texts), [], time.monotonic()
    def ask():
        while time.monotonic() - started < seconds and (text := next(texts, None)) is not None:
            began = time.monotonic()
            retriever.search([text], 10)
            found.append(time.monotonic() - began)
    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(json.dumps([time.monotonic() - started, found]), flush=True)
"""


def searches(**more: object) -> Iterator[Request]:
    """Requests for the gateway."""
    return (("POST", "/v1/search", {"utterance": text, "k": 10, **more}) for text in utterances())


def raw(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The gateway without a rewriter against the retriever without a gateway."""
    gateway = Gateway(folder, {"index": arguments.index, "retriever": arguments.retriever})
    bare = Child([sys.executable, "-c", BARE, arguments.index, arguments.retriever])
    bare.line()
    found: dict[str, Any] = {}
    for clients in arguments.clients:
        peers = {"gateway": Figures(), "bare": Figures()}
        for _ in range(arguments.rounds):
            peers["gateway"].add(load(gateway.port, clients, arguments.seconds, searches(rewrite="off")))
            texts = list(itertools.islice(utterances(), int(2000 * arguments.seconds)))
            bare.say(json.dumps([clients, arguments.seconds, texts]))
            seconds, latencies = json.loads(bare.line())
            peers["bare"].add(Figures(seconds, latencies))
        found[f"raw, {clients} clients"] = peers
        tell(f"raw, {clients} clients", peers)
    gateway.end()
    bare.end()
    return found


def tell(name: str, peers: dict[str, Figures]) -> None:
    """Rows of the table."""
    for peer, figures in peers.items():
        shares = "  ".join(f"{figures.percentile(share):8.1f}" for share in (0.5, 0.95, 0.99))
        others = {status: count for status, count in figures.statuses.items() if status != 200}
        lost = (
            f"{figures.fell_back()} fell back, not in the rate: {dict(figures.fallbacks)}" if figures.fallbacks else ""
        )
        print(f"{name:24} {peer:10} {figures.rate():8.1f}/s  {shares} ms  {lost} {others or ''}")
    first, second = peers.values()
    if first.latencies and second.latencies:
        more = first.percentile(0.5) - second.percentile(0.5)
        print(f"{'':24} {'ratio':10} {first.rate() / second.rate():8.2f}    {more:+8.1f} ms p50", flush=True)


def main() -> None:
    """The runs that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", default="runs/sample/index")
    parser.add_argument("--retriever", default="dense")
    parser.add_argument("--rewriter", help="a rewriter's folder: also measure with rewriting")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=12.0, help="of a round (12)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rewrites", type=int, default=48, help="requests of a round with rewriting (48)")
    parser.add_argument("--rewriting-clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--answer-tokens", type=int, default=48, help="of a rewrite at most (48)")
    parser.add_argument("--out", type=Path, help="also write the JSON there")
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="mixed load instead")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.soak:
            from serve_soak import soak

            found: dict[str, Any] = soak(arguments, Path(folder))
        else:
            peers = raw(arguments, Path(folder))
            if arguments.rewriter:
                from serve_rewriting import rewriting

                with_rewrites, own = rewriting(arguments, Path(folder))
                peers |= with_rewrites
            found = {name: {peer: each.summary() for peer, each in both.items()} for name, both in peers.items()}
            found |= {"own": own} if arguments.rewriter else {}
    facts = json.dumps({"cores": os.cpu_count(), "load": os.getloadavg(), "retriever": arguments.retriever, **found})
    print(facts)
    if arguments.out:
        arguments.out.write_text(facts + "\n")


if __name__ == "__main__":
    main()
