"""Kills a batch job with -9 at random moments until it gets through, again and again, and compares every byte.

    python benchmarks/batch_kills.py [--engine local] [--kills 50] [--rows 1500] [--chunk 20] [--seed 0]

Every other kill of a job on Ray hits one of its workers, the others the process that runs the job. An index (BM25)
takes part; the rewriter is rules, so that what is tried is the machinery and not the patience.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from pipelines.context import make_context
from pipelines.index.build import IndexConfig, build_index
from retrievers.settings import BM25Settings

COMMAND = [sys.executable, "-c", "from pipelines.cli.main import batch; raise SystemExit(batch())"]


def prepare(folder: Path, rows: int, chunk: int) -> None:
    """Input with equal and bad rows, an index of the bundled sample, a config."""
    config = IndexConfig(str(folder / "index"), ("bundled:sample",), {"bm25": BM25Settings()})
    build_index(config, make_context("cpu"))
    lines = [json.dumps({"_id": str(n), "text": f"find parcel {n % 400} and book a hotel"}) for n in range(rows)]
    lines[7::150] = ["{broken"] * len(lines[7::150])
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "config.yaml").write_text(
        f"rewriter: {{template: needs, backend: {{kind: rules}}}}\nindex: {folder / 'index'}\nretriever: bm25\n"
        f"chunk: {chunk}\nray: {{workers: 2, cpus: 0.5}}\n"
    )


def start(folder: Path, name: str, engine: str) -> subprocess.Popen[bytes]:
    """The command, as a user gives it."""
    words = [str(folder / "in.jsonl"), str(folder / name), "--config", str(folder / "config.yaml"), "--engine", engine]
    return subprocess.Popen([*COMMAND, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def workers(job: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The actors that work for a job."""
    try:
        return [each for each in psutil.Process(job.pid).children(recursive=True) if "MapWorker" in each.name()]
    except psutil.Error:
        return []


def state(folder: Path, name: str) -> dict[str, bytes]:
    """What a job wrote, but for its figures."""
    return {ending: (folder / f"{name}{ending}").read_bytes() for ending in ("", ".errors.jsonl")}


def torture(folder: Path, engine: str, duration: float, chance: random.Random) -> tuple[int, int]:
    """One job, killed until it gets through: kills of the job, kills of its workers."""
    for path in folder.glob("torn.jsonl*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    driver = worker = 0
    while True:
        job = start(folder, "torn.jsonl", engine)
        end = time.monotonic() + chance.uniform(0, duration)
        hit_worker = engine == "ray" and (driver + worker) % 2 == 0
        while job.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        if job.poll() is None and hit_worker and (victims := workers(job)):
            chance.choice(victims).send_signal(signal.SIGKILL)
            worker += 1
            end = time.monotonic() + chance.uniform(0, duration)
            while job.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
        if job.poll() is None:
            job.send_signal(signal.SIGKILL)
            driver += 1
        _, told = job.communicate()
        if job.returncode == 0:
            return driver, worker
        if job.returncode != -signal.SIGKILL:
            raise SystemExit(f"the job ended with {job.returncode}: {told.decode()[-2000:]}")


def main() -> None:
    """As many jobs as the kills take."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--chunk", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, engine {arguments.engine}, seed {arguments.seed}")
    with tempfile.TemporaryDirectory() as scratch:
        folder, chance = Path(scratch), random.Random(arguments.seed)
        prepare(folder, arguments.rows, arguments.chunk)
        if start(folder, "whole.jsonl", "local").wait():
            raise SystemExit("the job does not even work when it is left alone")
        expected, started = state(folder, "whole.jsonl"), time.monotonic()
        if start(folder, "other.jsonl", arguments.engine).wait():
            raise SystemExit("the job does not even work when it is left alone")
        duration = time.monotonic() - started
        drivers = hit = jobs = wrong = 0
        while drivers + hit < arguments.kills:
            driver, worker = torture(folder, arguments.engine, duration, chance)
            drivers, hit, jobs = drivers + driver, hit + worker, jobs + 1
            wrong += state(folder, "torn.jsonl") != expected
            print(f"{jobs} jobs, {drivers} kills of the job, {hit} of its workers, {wrong} wrong", flush=True)
    if wrong:
        raise SystemExit(f"{wrong} of {jobs} jobs did not end with the same bytes")
    print(f"{drivers + hit} kills, {jobs} jobs, every one ended with the same bytes")


if __name__ == "__main__":
    main()
