"""`rewrite-eval --check`: do run folders still say what we publish?"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrievers.errors import BadInput


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """What a run folder is expected to say."""

    command: str
    """What writes the folder."""
    machine: str
    """Where the figures were taken."""
    systems: dict[str, dict[str, float]]
    """System -> metric -> figure."""
    tolerance: float = 0.002
    """How far a figure may be off, either way."""
    tolerances: dict[str, float] = field(default_factory=dict)
    """The same for single metrics."""
    queries: int = 0
    """How many were asked; 0: not looked at."""
    note: str = ""

    def __post_init__(self) -> None:
        if not self.systems:
            raise BadInput("a run without an expected figure", "systems")
        if self.tolerance < 0 or any(each < 0 for each in self.tolerances.values()):
            raise BadInput("a tolerance is not negative", "tolerance")


@dataclass(frozen=True, slots=True)
class ExpectedConfig:
    """`rewrite-eval --check`."""

    runs: dict[str, ExpectedRun]
    """Run folder -> what it is expected to say."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a check."""

    right: int
    """Figures that are as expected."""
    wrong: tuple[str, ...]
    """A line a deviation."""
    missing: tuple[str, ...]
    """A line a run that is not there."""


def check(config: ExpectedConfig, only: Sequence[str] = ()) -> Verdict:
    """Compares every expected run, or those under some folders, with what its folder says."""
    wanted = {name: run for name, run in config.runs.items() if not only or any(_under(name, each) for each in only)}
    for each in only:
        if not any(_under(name, each) for name in config.runs):
            raise BadInput(f"nothing is expected of {each}; expected are {', '.join(config.runs)}")
    right, wrong, missing = 0, [], []
    for name, expected in wanted.items():
        path = Path(name) / "metrics.json"
        if not path.is_file():
            missing.append(f"{name}: not run; {expected.command}")
            continue
        lines, good = _deviations(name, expected, _read(path))
        wrong.extend(lines)
        right += good
    return Verdict(right, tuple(wrong), tuple(missing))


def _under(name: str, folder: str) -> bool:
    return Path(name) == Path(folder) or Path(folder) in Path(name).parents


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read ({error}); run it again") from error
    if not isinstance(found, dict) or not isinstance(found.get("systems"), dict):
        raise BadInput(f"{path} is not what rewrite-eval writes; run it again")
    return found


def _deviations(name: str, expected: ExpectedRun, told: dict[str, Any]) -> tuple[list[str], int]:
    lines, good = [], 0
    if expected.queries and told.get("queries") != expected.queries:
        lines.append(f"{name}: {told.get('queries')} queries, expected {expected.queries}")
    for system, metrics in expected.systems.items():
        found = told["systems"].get(system)
        if found is None:
            lines.append(f"{name}: no system {system}; it has {', '.join(told['systems'])}")
            continue
        for metric, value in metrics.items():
            got, room = found.get(metric), expected.tolerances.get(metric, expected.tolerance)
            if isinstance(got, bool) or not isinstance(got, int | float) or not math.isfinite(got):
                what = f"no {metric}" if got is None else f"no number as {metric}"
                lines.append(f"{name}: {system} has {what}, expected {value:.4f}")
            elif abs(got - value) > room + 1e-9:
                lines.append(f"{name}: {system} {metric} is {got:.4f}, expected {value:.4f} ± {room:g}")
            else:
                good += 1
    return lines, good
