"""`rewrite-eval --check`: compare run folders with the figures we publish."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from retrievers.errors import BadInput


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """Expected figures of a run folder."""

    command: str
    """The command that writes the folder."""
    machine: str
    """Where the figures were measured."""
    systems: dict[str, dict[str, float]]
    """System -> metric -> figure."""
    tolerance: Annotated[float, Ge(0)] = 0.002
    """Allowed difference, either way."""
    tolerances: dict[str, Annotated[float, Ge(0)]] = field(default_factory=dict)
    """Metric -> its own tolerance."""
    queries: int = 0
    """Expected number of queries; 0: not checked."""
    note: str = ""

    def __post_init__(self) -> None:
        if not self.systems:
            raise BadInput("a run needs at least one expected figure, got none", "systems")


@dataclass(frozen=True, slots=True)
class ExpectedConfig:
    """`rewrite-eval --check`."""

    runs: dict[str, ExpectedRun]
    """Run folder -> its expected figures."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Outcome of a check: number of figures as expected, one line per deviation, one per missing run."""

    right: int
    wrong: tuple[str, ...]
    missing: tuple[str, ...]


def check(config: ExpectedConfig, only: Sequence[str] = ()) -> CheckResult:
    """Compare every expected run, or those under some folders, with its folder."""
    for folder in only:
        if not any(_is_under(name, folder) for name in config.runs):
            raise BadInput(f"no figures are expected of {folder}; expected are {', '.join(config.runs)}")
    right, wrong, missing = 0, list[str](), []
    for name, expected in config.runs.items():
        if only and not any(_is_under(name, folder) for folder in only):
            continue
        path = Path(name) / "metrics.json"
        if not path.is_file():
            missing.append(f"{name}: not run; {expected.command}")
            continue
        lines, same = _deviations(name, expected, _read(path, expected.command))
        wrong.extend(lines)
        right += same
    return CheckResult(right, tuple(wrong), tuple(missing))


def _is_under(name: str, folder: str) -> bool:
    return Path(name) == Path(folder) or Path(folder) in Path(name).parents


def _read(path: Path, command: str) -> dict[str, Any]:
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read ({error}); run `{command}` again") from error
    if not isinstance(metrics, dict) or not isinstance(metrics.get("systems"), dict):
        raise BadInput(f"{path} was not written by rewrite-eval; run `{command}` again")
    return metrics


def _deviations(name: str, expected: ExpectedRun, metrics: dict[str, Any]) -> tuple[list[str], int]:
    lines, same = [], 0
    if expected.queries and metrics.get("queries") != expected.queries:
        lines.append(f"{name}: {metrics.get('queries')} queries, expected {expected.queries}")
    for system, figures in expected.systems.items():
        measured = metrics["systems"].get(system)
        if measured is None:
            lines.append(f"{name}: no system {system}; it has {', '.join(metrics['systems'])}")
            continue
        for metric, value in figures.items():
            got, tolerance = measured.get(metric), expected.tolerances.get(metric, expected.tolerance)
            if isinstance(got, bool) or not isinstance(got, int | float) or not math.isfinite(got):
                problem = f"no {metric}" if got is None else f"no number as {metric}"
                lines.append(f"{name}: {system} has {problem}, expected {value:.4f}")
            elif abs(got - value) > tolerance + 1e-9:
                lines.append(f"{name}: {system} {metric} is {got:.4f}, expected {value:.4f} ± {tolerance:g}")
            else:
                same += 1
    return lines, same
