"""`rewrite-eval seeds`: does one system beat another, over runs with different seeds and over queries?

A test over queries alone takes one trained model for the method. Here runs and queries are both drawn again: first the
trainings that the counterpart comes from, then the runs that start from each of them, then the queries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.evaluate.significance import holm
from retrievers.errors import BadInput

ROUNDS = 10_000
BLOCK = 500
KEYS = {"dataset", "protocol", "split", "systems", "fingerprints", "fusions", "rewriters"}
"""Of metrics.json that are read here."""


@dataclass(frozen=True, slots=True)
class SeedRun:
    """One evaluation folder."""

    folder: Path
    data: str
    """Data set, protocol and split."""
    start: str
    """What the counterpart is made of: runs with the same one share a training."""
    queries: tuple[str, ...]
    values: np.ndarray
    """(2, queries): the metric of system and counterpart."""


@dataclass(frozen=True, slots=True)
class SeedRow:
    """Both systems on one data set."""

    data: str
    runs: int
    starts: int
    """Different trainings of the counterpart."""
    queries: int
    before: float
    after: float
    interval: tuple[float, float]
    p_value: float
    p_holm: float = 1.0


def read_run(folder: Path, system: str, against: str, metric: str) -> SeedRun:
    """Read an evaluation that has both systems."""
    try:
        facts = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        lines = [json.loads(line) for line in (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder} is not a finished evaluation of `rewrite-eval` ({error})") from error
    if not isinstance(facts, dict) or not facts.keys() >= KEYS:
        raise BadInput(f"{folder} is not an evaluation of systems; give an output of `rewrite-eval CONFIG`")
    for name in (system, against):
        if name not in facts["systems"]:
            raise BadInput(f"{folder} has no system {name!r}, but {', '.join(facts['systems'])}")
        if metric not in facts["systems"][name]:
            raise BadInput(f"{folder} has no metric {metric!r}, but {', '.join(facts['systems'][name])}")
    values = np.array([[line["scores"][name][metric] for line in lines] for name in (system, against)])
    data = f"{facts['dataset']} {facts['protocol']} {facts['split']}"
    return SeedRun(folder, data, _made_of(facts, against), tuple(line["_id"] for line in lines), values)


def _made_of(facts: Mapping[str, Any], system: str) -> str:
    """The state of a system's retriever and of its rewriter."""
    rewriter = facts["fusions"].get(system, {}).get("rewriter", "")
    made_of = facts["rewriters"].get(rewriter, {}).get("made_of", {})
    return f"{facts['fingerprints'][system]} {made_of.get('fingerprint', rewriter)}"


def compare_seeds(runs: Sequence[SeedRun], seed: int = 0) -> list[SeedRow]:
    """One row per data set, corrected over the data sets."""
    by_data: dict[str, list[SeedRun]] = {}
    for run in runs:
        by_data.setdefault(run.data, []).append(run)
    rows = [_compare(data, own, seed) for data, own in by_data.items()]
    corrected = holm([row.p_value for row in rows])
    return [replace(row, p_holm=p_holm) for row, p_holm in zip(rows, corrected, strict=True)]


def _compare(data: str, runs: Sequence[SeedRun], seed: int) -> SeedRow:
    for run in runs[1:]:
        if run.queries != runs[0].queries:
            raise BadInput(f"{run.folder} and {runs[0].folder} evaluate different queries of {data}")
    differences = np.stack([run.values[0] - run.values[1] for run in runs])
    starts = [run.start for run in runs]
    drawn = hierarchical_bootstrap(differences, starts, seed)
    low, high = np.percentile(drawn, [2.5, 97.5])
    tail = min(int((drawn <= 1e-12).sum()), int((drawn >= -1e-12).sum()))
    return SeedRow(
        data,
        len(runs),
        len(set(starts)),
        differences.shape[1],
        float(np.mean([run.values[1].mean() for run in runs])),
        float(np.mean([run.values[0].mean() for run in runs])),
        (round(float(low), 6), round(float(high), 6)),
        min(1.0, 2 * (tail + 1) / (len(drawn) + 1)),
    )


def hierarchical_bootstrap(
    differences: np.ndarray, starts: Sequence[str], seed: int = 0, rounds: int = ROUNDS
) -> np.ndarray:
    """(rounds,): mean differences of runs and queries drawn again, from (runs, queries).

    Few seeds drawn again vary too little, by (n - 1) / n: their weights are spread to make up for it (Rao, Wu, 1988).
    """
    rng = np.random.default_rng(seed)
    names = sorted(set(starts))
    members = [np.array([row for row, start in enumerate(starts) if start == name]) for name in names]
    queries = differences.shape[1]
    means = []
    for begin in range(0, rounds, BLOCK):
        count = min(BLOCK, rounds - begin)
        outer = _weights(rng, len(names), count)
        weights = np.zeros((count, len(differences)))
        for column, rows in enumerate(members):
            weights[:, rows] = outer[:, column : column + 1] * _weights(rng, len(rows), count)
        of_queries = rng.multinomial(queries, np.full(queries, 1 / queries), size=count) / queries
        means.append(((weights @ differences) * of_queries).sum(axis=1))
    return np.concatenate(means)


def _weights(rng: np.random.Generator, number: int, count: int) -> np.ndarray:
    """(count, number): shares of things drawn again, spread by the factor of Rao and Wu; one thing keeps share 1."""
    if number == 1:
        return np.ones((count, 1))
    shares = rng.multinomial(number, np.full(number, 1 / number), size=count) / number
    spread: np.ndarray = 1 / number + (shares - 1 / number) * np.sqrt(number / (number - 1))
    return spread
