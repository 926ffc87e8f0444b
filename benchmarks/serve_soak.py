"""Minutes of mixed load: searches, lists, filters, pages, live adds and removes, confirmations. Errors and memory."""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serve_clients import Figures, Request, load
from serve_load import Gateway, utterances

from pipelines.context import make_context
from retrievers.index import Index


def mixed(seed: int, known: list[str]) -> Iterator[Request]:
    """What callers do, at random. `known`: tools to confirm, which nobody takes out."""
    chance, words = random.Random(seed), utterances()
    while True:
        tool = f"soak/tool-{chance.randrange(50)}"
        draw = chance.random()
        if draw < 0.70:
            yield "POST", "/v1/search", {"utterance": next(words), "k": chance.choice([1, 5, 10, 50])}
        elif draw < 0.76:
            yield "POST", "/v1/search", {"utterance": [next(words) for _ in range(chance.randint(2, 8))]}
        elif draw < 0.82:
            yield "POST", "/v1/search", {"utterance": next(words), "filters": {"category": ["Weather", "Travel"]}}
        elif draw < 0.88:
            yield "PUT", f"/v1/tools/{tool}", {"name": f"soak{chance.randrange(10**6)}", "description": next(words)}
        elif draw < 0.92:
            yield "DELETE", f"/v1/tools/{tool}", None
        elif draw < 0.94:
            yield "GET", f"/v1/tools?limit=20&after={chance.choice('abcdefgh')}", None
        elif draw < 0.96:
            yield "POST", "/v1/feedback", {"utterance": next(words), "tools": [chance.choice(known)]}
        elif draw < 0.98:
            yield "GET", "/metrics", None
        else:
            yield "GET", f"/v1/tools/{tool}", None


def soak(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Any status but 200, 404 (a tool that is not there) and 429 is an error; memory is compared by thirds."""
    import shutil

    shutil.copytree(arguments.index, folder / "index")
    config: dict[str, Any] = {"index": str(folder / "index"), "retriever": arguments.retriever}
    config["feedback"] = str(folder / "feedback")
    if arguments.rewriter:
        engine = {"kind": "vllm", "context": 1024, "eager": True, "logs": str(folder / "logs")}
        config["rewriter"] = {"path": arguments.rewriter, "engine": engine, "fusion": {"raw": 0.5}, "concurrency": 4}
        config |= {"deadline_ms": 2000}
    known = list(Index(folder / "index", make_context("cpu")).tools)
    gateway = Gateway(folder, config)
    load(gateway.port, 4, 20, mixed(0, known))  # what is made once is made before memory is looked at
    total, memory, stop = Figures(), list[float](), threading.Event()

    def watch() -> None:
        while not stop.wait(2.0):
            memory.append(gateway.memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started, round_ = time.monotonic(), 0
    while (left := 60 * arguments.soak - (time.monotonic() - started)) > 0:
        round_ += 1
        total.add(load(gateway.port, 8, min(30.0, left), mixed(round_, known)))
        print(
            f"{(time.monotonic() - started) / 60:5.1f} min  {len(total.latencies):7} requests  {memory[-1]:7.1f} MB",
            flush=True,
        )
    stop.set()
    watcher.join()
    gateway.end()
    third = max(1, len(memory) // 3)
    first, last = statistics.mean(memory[:third]), statistics.mean(memory[-third:])
    errors = sum(count for status, count in total.statuses.items() if status not in (200, 404, 429))
    print(
        f"errors {errors}, memory {first:.1f} MB in the first third, {last:.1f} in the last ({last / first - 1:+.1%})"
    )
    return {"soak": total.summary(), "errors": errors, "memory_mb": {"first_third": first, "last_third": last}}
