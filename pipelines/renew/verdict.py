"""Compares candidate and live: is the candidate better, and nowhere worse?

Better: the first metric over all fixed queries together, one test. Worse: every metric in every data set and every
group of it, each by its own p. That is deliberately not corrected for the number of tests: missed harm costs users, a
false alarm costs one round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.evaluate.output import write_evaluation
from pipelines.evaluate.run import EvalConfig, Evaluation, evaluate
from pipelines.evaluate.significance import randomisation_test
from pipelines.evaluate.systems import SystemSettings
from pipelines.renew.fixed_sets import LoadedSet, write_fixed_set
from pipelines.renew.rounds import CANDIDATE, LIVE
from pipelines.renew.settings import RenewConfig, RetrainRewriter
from pipelines.rewriters import RewriterSettings
from retrievers.index import Index
from retrievers.kind import Context

ALL = "all queries"


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """One metric over the queries of a data set or of a group."""

    data: str
    group: str
    metric: str
    queries: int
    live: float
    candidate: float
    p_value: float

    @property
    def difference(self) -> float:
        """Candidate minus live."""
        return self.candidate - self.live


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the comparison."""

    comparisons: tuple[MetricComparison, ...]
    """The first is the first metric over all queries."""
    level: float

    @property
    def better(self) -> bool:
        """True if the candidate is better over all queries."""
        first = self.comparisons[0]
        return first.difference > 0 and first.p_value < self.level

    @property
    def worse(self) -> tuple[MetricComparison, ...]:
        """Comparisons in which the candidate is worse."""
        return tuple(row for row in self.comparisons if row.difference < 0 and row.p_value < self.level)

    @property
    def passed(self) -> bool:
        """True if the candidate is better, and nowhere worse."""
        return self.better and not self.worse

    def to_json(self) -> dict[str, Any]:
        """Content of verdict.json."""
        return {
            "better": self.better,
            "passed": self.passed,
            "level": self.level,
            "comparisons": [{**asdict(row), "difference": round(row.difference, 6)} for row in self.comparisons],
            "worse": [asdict(row) for row in self.worse],
        }


def verdict_from_json(facts: Mapping[str, Any]) -> Verdict:
    """Verdict from the content of verdict.json."""
    rows = [{name: value for name, value in row.items() if name != "difference"} for row in facts["comparisons"]]
    return Verdict(tuple(MetricComparison(**row) for row in rows), facts["level"])


def compare_on_fixed_sets(
    config: RenewConfig, folder: Path, sets: Sequence[LoadedSet], live: Index, context: Context
) -> Verdict:
    """Evaluate live and candidate on every fixed set, write the reports, and return the verdict."""
    systems, rewriters = make_systems(config, folder)
    evaluations: dict[str, Evaluation] = {}
    for fixed in sets:
        settings = EvalConfig(
            output=str(folder / f"eval-{fixed.name}"),
            data=str(write_fixed_set(folder / "fixed", fixed, live.tools)),
            systems=systems,
            rewriters=rewriters,
            split=fixed.settings.split,
            baseline=LIVE,
            metrics=config.metrics,
            group_by=fixed.settings.group_by,
            seed=config.seed,
        )
        evaluations[fixed.name] = evaluate(settings, context)
        write_evaluation(evaluations[fixed.name])
    return make_verdict(evaluations, config.metrics, config.level, config.seed)


def make_verdict(evaluations: Mapping[str, Evaluation], metrics: Sequence[str], level: float, seed: int) -> Verdict:
    """Verdict of several evaluations."""
    tables = {
        name: {system: np.stack([run.values[system][m] for m in metrics], axis=1) for system in (LIVE, CANDIDATE)}
        for name, run in evaluations.items()
    }
    pooled = {system: np.concatenate([table[system] for table in tables.values()]) for system in (LIVE, CANDIDATE)}
    rows = _compare("all data sets", ALL, pooled, metrics, seed)
    for name, run in evaluations.items():
        rows += _compare(name, ALL, tables[name], metrics, seed)
        for group, mask in run.groups.items():
            part = {system: table[mask] for system, table in tables[name].items()}
            rows += _compare(name, group, part, metrics, seed)
    return Verdict(tuple(rows), level)


def _compare(
    data: str, group: str, tables: Mapping[str, np.ndarray], metrics: Sequence[str], seed: int
) -> list[MetricComparison]:
    live, candidate = tables[LIVE], tables[CANDIDATE]
    p_values = randomisation_test(candidate - live, seed)
    means = zip(live.mean(axis=0).tolist(), candidate.mean(axis=0).tolist(), p_values.tolist(), strict=True)
    return [
        MetricComparison(data, group, metric, len(live), round(before, 6), round(after, 6), p)
        for metric, (before, after, p) in zip(metrics, means, strict=True)
    ]


def make_systems(config: RenewConfig, folder: Path) -> tuple[dict[str, SystemSettings], dict[str, RewriterSettings]]:
    """Both systems as a whole: with the live rewriter, if it exists, also where only the retriever is new."""
    now, rewriters = config.live, {}
    if now.rewriter is not None and now.rewriter.path is not None and Path(now.rewriter.path).expanduser().exists():
        rewriters[LIVE] = now.rewriter
    rewriter, fusion = (LIVE, now.fusion) if rewriters else (None, None)
    live = SystemSettings(now.retriever, str(folder / LIVE), rewriter=rewriter, fusion=fusion)
    if isinstance(config.retrain, RetrainRewriter):
        assert now.rewriter is not None
        rewriters[CANDIDATE] = replace(now.rewriter, path=str(folder / CANDIDATE))
        candidate = SystemSettings(now.retriever, str(folder / LIVE), rewriter=CANDIDATE, fusion=now.fusion)
    else:
        candidate = SystemSettings(now.retriever, str(folder / CANDIDATE), rewriter=rewriter, fusion=fusion)
    return {LIVE: live, CANDIDATE: candidate}, rewriters
