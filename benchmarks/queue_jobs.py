"""Every command behind the GPU's figures, side by side on one card, in the order of a list.

    python benchmarks/queue_jobs.py benchmarks/gpu.yaml --state runs/gpu [--gigabytes 120] [--at-once 6]
    python benchmarks/queue_jobs.py benchmarks/gpu.yaml --state runs/gpu --list

A job is a shell command; it begins when its `needs` have ended well, its `files` are there and the card has room
(`gigabytes`), the first of the list first. A job that is `alone` has the card to itself, since its seconds are figures,
and what stands behind it in the list waits for it; only what takes nothing of the card may run beside it. The list may
be changed meanwhile: what is added is run, what is taken out is not begun.
Each leaves NAME.log and NAME.end (exit code, seconds) in the state folder. One that ended well is not run again; one
that failed is, when the queue is started anew. What waits for a failed one is named in the end, with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import yaml

PAUSE = 0.5
"""Seconds between two looks."""


@dataclass(frozen=True)
class Job:
    """One command."""

    run: str
    needs: tuple[str, ...] = ()
    """Jobs that must have ended well before."""
    files: tuple[str, ...] = ()
    """What must be there: a model that somebody fetches meanwhile, say. It is waited for."""
    gigabytes: float = 4.0
    """Of the card, at most."""
    alone: bool = False


@dataclass
class Queue:
    """The jobs, and how far they are."""

    jobs: Mapping[str, Job]
    state: Path
    room: float
    at_once: int
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    begun: dict[str, Job] = field(default_factory=dict)
    """What runs, as it read when it began."""
    began: dict[str, float] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def done(self, name: str) -> bool:
        """True where it ended well, now or in an earlier run of the queue."""
        try:
            return bool(json.loads((self.state / f"{name}.end").read_text())["code"] == 0)
        except (OSError, ValueError, KeyError):
            return False

    def hopeless(self, name: str) -> bool:
        """True where it failed, or waits for one that did."""
        return name in self.failed or any(self.hopeless(other) for other in self.jobs[name].needs)

    def step(self) -> bool:
        """Notes what ended, begins what can; False where nothing is left that ever could."""
        self._reap()
        open_jobs = [name for name in self.jobs if not self.done(name) and name not in self.running]
        waiting = [name for name in open_jobs if not self.hopeless(name)]
        emptying = False
        for name in waiting:
            if self._fits(name) and not (emptying and self.jobs[name].gigabytes):
                self._begin(name)
            elif self.jobs[name].alone and self._ready(name):
                emptying = True  # for it; what takes nothing of the card need not wait
        return bool(waiting or self.running)

    def take(self, jobs: Mapping[str, Job]) -> None:
        """Another list from now on. What runs ends as it began, what failed is tried again if it changed."""
        self.failed -= {name for name in self.failed if jobs.get(name) != self.jobs[name]}
        self.jobs = {**jobs, **self.begun}

    def stop(self) -> None:
        """Ends what still runs, with all its processes."""
        for process in self.running.values():
            os.killpg(process.pid, signal.SIGTERM)
        for process in self.running.values():
            process.wait()

    def _ready(self, name: str) -> bool:
        job = self.jobs[name]
        return all(map(self.done, job.needs)) and all(Path(each).expanduser().exists() for each in job.files)

    def _fits(self, name: str) -> bool:
        job = self.jobs[name]
        if not self._ready(name):
            return False
        others = [each for each in self.begun.values() if each.gigabytes]
        if not job.gigabytes or not others:
            return True
        taken = sum(each.gigabytes for each in others)
        occupied = job.alone or any(each.alone for each in others)
        return not occupied and len(others) < self.at_once and taken + job.gigabytes <= self.room

    def _begin(self, name: str) -> None:
        print(f"{name}: begins", flush=True)
        with (self.state / f"{name}.log").open("wb") as log:
            self.begun[name] = self.jobs[name]
            command = ["bash", "-c", self.jobs[name].run]
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self.began[name] = time.monotonic()

    def _reap(self) -> None:
        for name in [name for name, process in self.running.items() if process.poll() is not None]:
            code, seconds = self.running.pop(name).returncode, time.monotonic() - self.began[name]
            job = self.begun.pop(name)
            facts = {"code": code, "seconds": round(seconds, 1), "beside": sorted(self.running)}
            (self.state / f"{name}.end").write_text(json.dumps({"run": job.run, **facts}) + "\n")
            if code:
                self.failed.add(name)
            print(f"{name}: {'ended' if not code else f'FAILED with {code}'} after {seconds:.0f} s", flush=True)


def read_jobs(path: Path) -> dict[str, Job]:
    """The list; a need that nothing meets is refused, and so is a key that nobody knows."""
    try:
        listed = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SystemExit(f"{path} is no list of jobs: {error}") from error
    jobs = {}
    for name, facts in listed.items() if isinstance(listed, dict) else ():
        strange = (
            set(map(str, facts)) - {each.name for each in fields(Job)} if isinstance(facts, dict) else {str(facts)}
        )
        if strange or "run" not in facts:
            raise SystemExit(f"{path}: {name} needs a `run`, and {', '.join(sorted(strange)) or 'nothing'} is unknown")
        if wrong := [key for key, value in facts.items() if not _fitting(key, value)]:
            raise SystemExit(f"{path}: {name} has a strange `{wrong[0]}`: {facts[wrong[0]]!r}")
        lists = {key: tuple(facts.get(key, ())) for key in ("needs", "files")}
        jobs[str(name)] = Job(**{**facts, **lists})
    if not jobs:
        raise SystemExit(f"{path} names no jobs")
    for name, job in jobs.items():
        unknown = [each for each in job.needs if each not in jobs]
        if unknown:
            raise SystemExit(f"{path}: {name} needs {unknown[0]}, which is not in the list")
    try:
        tuple(TopologicalSorter({name: job.needs for name, job in jobs.items()}).static_order())
    except CycleError as error:
        raise SystemExit(f"{path}: {' needs '.join(reversed(error.args[1]))}, and none can begin") from error
    return jobs


def _fitting(key: str, value: object) -> bool:
    if key in ("needs", "files"):
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    kinds = {"run": str, "alone": bool, "gigabytes": (int, float)}
    return isinstance(value, kinds[key]) and not (key == "gigabytes" and isinstance(value, bool))


class Watched:
    """A list that is taken over when it is written anew, once nobody writes it any more; one that is none changes
    nothing."""

    def __init__(self, path: Path, only: list[str] | None) -> None:
        self._path, self._only = path, only
        self._taken = self._seen = _written(path)
        self.jobs = self._read()

    def look(self, queue: Queue) -> None:
        """To be called every now and then."""
        before, self._seen = self._seen, _written(self._path)
        if self._seen in (self._taken, None) or self._seen != before:
            return
        self._taken = self._seen
        try:
            queue.take(self._read())
        except SystemExit as error:
            print(f"{error}; the list stays as it was", flush=True)
        else:
            print(f"{self._path} is read anew: {len(queue.jobs)} jobs", flush=True)

    def _read(self) -> dict[str, Job]:
        jobs = read_jobs(self._path)
        return wanted(jobs, self._only) if self._only else jobs


def _written(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def main() -> int:
    """Runs what can be run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("--state", type=Path, required=True, help="folder for logs and results")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these jobs and what they need")
    parser.add_argument("--gigabytes", type=float, default=120.0, help="of the card, for all that runs at once")
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--list", action="store_true", help="tell how far it is, and run nothing")
    options = parser.parse_args()
    listed = Watched(options.jobs, options.only)
    jobs = listed.jobs
    options.state.mkdir(parents=True, exist_ok=True)
    queue = Queue(jobs, options.state, options.gigabytes, options.at_once)
    if options.list:
        for name, job in jobs.items():
            print(f"{'done' if queue.done(name) else 'open':<5} {name:<24} {job.run}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        while queue.step():
            time.sleep(PAUSE)
            listed.look(queue)
    finally:
        queue.stop()
    lost = [name for name in queue.jobs if not queue.done(name)]
    print(f"not done: {', '.join(lost)}" if lost else "all done", flush=True)
    return 1 if lost else 0


def wanted(jobs: Mapping[str, Job], names: list[str]) -> dict[str, Job]:
    """The named ones with all that they need, in the order of the list."""
    unknown = [name for name in names if name not in jobs]
    if unknown:
        raise SystemExit(f"there is no job {unknown[0]}; there are {', '.join(jobs)}")
    found: set[str] = set()
    missing = set(names)
    while missing:
        found |= missing
        missing = {need for name in missing for need in jobs[name].needs} - found
    return {name: job for name, job in jobs.items() if name in found}


if __name__ == "__main__":
    sys.exit(main())
