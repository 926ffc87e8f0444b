"""Is the candidate better, and nowhere worse? The tests of `rewrite-eval`, asked place by place.

Better: the first metric over all fixed queries together, one question, one p. Worse: every metric in every data set and
every group of it, each by its own p. That is not corrected for the number of questions, on purpose: a harm that is
missed costs users, a false alarm costs one round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.evaluate.output import write_evaluation
from pipelines.evaluate.run import EvalConfig, Evaluation, evaluate
from pipelines.evaluate.significance import randomisation_test
from pipelines.evaluate.systems import SystemSettings
from pipelines.renew.fixed_sets import Fixed, write_fixed
from pipelines.renew.retrain import CANDIDATE
from pipelines.renew.settings import Live, RenewConfig, RetrainRewriter
from pipelines.rewriters import RewriterSettings
from retrievers.index import Index
from retrievers.kind import Context

LIVE = "live"
ALL = "all queries"


@dataclass(frozen=True, slots=True)
class Place:
    """One metric over some of the queries."""

    data: str
    group: str
    metric: str
    queries: int
    live: float
    candidate: float
    p_value: float

    @property
    def difference(self) -> float:
        """How much more the candidate has."""
        return self.candidate - self.live


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison says."""

    places: tuple[Place, ...]
    level: float

    @property
    def better(self) -> bool:
        """The first metric, over everything."""
        first = self.places[0]
        return first.difference > 0 and first.p_value < self.level

    @property
    def worse(self) -> tuple[Place, ...]:
        """Where the candidate does harm."""
        return tuple(each for each in self.places if each.difference < 0 and each.p_value < self.level)

    @property
    def passed(self) -> bool:
        """Better, and nowhere worse."""
        return self.better and not self.worse

    def facts(self) -> dict[str, Any]:
        """For verdict.json."""
        return {
            "better": self.better,
            "passed": self.passed,
            "level": self.level,
            "places": [{**asdict(each), "difference": round(each.difference, 6)} for each in self.places],
            "worse": [asdict(each) for each in self.worse],
        }


def read_verdict(facts: Mapping[str, Any]) -> Verdict:
    """A verdict out of verdict.json."""
    places = [{name: value for name, value in each.items() if name != "difference"} for each in facts["places"]]
    return Verdict(tuple(Place(**each) for each in places), facts["level"])


def judge(config: RenewConfig, folder: Path, fixed: Sequence[Fixed], live: Index, context: Context) -> Verdict:
    """Evaluates live and candidate on every fixed set, writes their reports, and gives the verdict."""
    systems, rewriters = _systems(config, folder)
    found: dict[str, Evaluation] = {}
    for each in fixed:
        data = write_fixed(folder / "fixed", each, live.tools)
        wanted = EvalConfig(
            output=str(folder / f"eval-{each.name}"),
            data=str(data),
            systems=systems,
            rewriters=rewriters,
            split=each.settings.split,
            baseline=LIVE,
            metrics=config.metrics,
            group_by=each.settings.group_by,
            seed=config.seed,
        )
        found[each.name] = evaluate(wanted, context)
        write_evaluation(found[each.name])
    return verdict(found, config.metrics, config.level, config.seed)


def verdict(found: Mapping[str, Evaluation], metrics: Sequence[str], level: float, seed: int) -> Verdict:
    """The verdict of several evaluations."""
    tables = {
        name: {system: np.stack([each.values[system][m] for m in metrics], axis=1) for system in (LIVE, CANDIDATE)}
        for name, each in found.items()
    }
    pooled = {system: np.concatenate([table[system] for table in tables.values()]) for system in (LIVE, CANDIDATE)}
    places = _places("all data sets", ALL, pooled, metrics, seed)
    for name, each in found.items():
        places += _places(name, ALL, tables[name], metrics, seed)
        for group, mask in each.groups.items():
            some = {system: table[mask] for system, table in tables[name].items()}
            places += _places(name, group, some, metrics, seed)
    return Verdict(tuple(places), level)


def _places(data: str, group: str, tables: Mapping[str, np.ndarray], metrics: Sequence[str], seed: int) -> list[Place]:
    live, candidate = tables[LIVE], tables[CANDIDATE]
    p_values = randomisation_test(candidate - live, seed)
    means = zip(live.mean(axis=0).tolist(), candidate.mean(axis=0).tolist(), p_values.tolist(), strict=True)
    return [
        Place(data, group, metric, len(live), round(before, 6), round(after, 6), p)
        for metric, (before, after, p) in zip(metrics, means, strict=True)
    ]


def _systems(config: RenewConfig, folder: Path) -> tuple[dict[str, SystemSettings], dict[str, RewriterSettings]]:
    """Both paths of a query, whole: with the live rewriter, too, where only the retriever is new."""
    now, rewriters = config.live, {}
    there = live_rewriter(now)
    if there is not None:
        rewriters[LIVE] = there
    live = SystemSettings(
        now.retriever, str(folder / LIVE), rewriter=LIVE if there else None, fusion=now.fusion if there else None
    )
    if isinstance(config.retrain, RetrainRewriter):
        assert now.rewriter is not None
        like = now.rewriter
        rewriters[CANDIDATE] = RewriterSettings(str(folder / CANDIDATE), like.base, None, like.backend, like.sampling)
        candidate = SystemSettings(now.retriever, str(folder / LIVE), rewriter=CANDIDATE, fusion=now.fusion)
    else:
        candidate = SystemSettings(now.retriever, str(folder / CANDIDATE), rewriter=live.rewriter, fusion=live.fusion)
    return {LIVE: live, CANDIDATE: candidate}, rewriters


def live_rewriter(live: Live) -> RewriterSettings | None:
    """The rewriter that the server has; None: there is none yet, and raw retrieval is what is live."""
    if live.rewriter is None or live.rewriter.path is None or not Path(live.rewriter.path).expanduser().exists():
        return None
    return live.rewriter
