"""`rewrite-eval`: systems x metrics on one split, with significance, wins and losses, and a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np

from pipelines.context import make_context
from pipelines.data.dataset import DataSet, limit_queries, load_dataset
from pipelines.data.splits import Protocol, apply_protocol
from pipelines.evaluate.compare import compare, curve, groups, pair
from pipelines.evaluate.context import Trial
from pipelines.evaluate.grid import Grid, own_raw
from pipelines.evaluate.rewriter_stats import fusion_row, fusions_json, rewriter_row, rewriters_json
from pipelines.evaluate.rewritten_systems import DEV, METRIC, Rewritten
from pipelines.evaluate.significance import bootstrap_intervals
from pipelines.evaluate.systems import Ranked, SystemSettings, ask
from pipelines.report.data import ComparisonRow, FusionRow, RewriterRow
from pipelines.rewriters import RewriterSettings
from retrievers.errors import BadInput
from retrievers.kind import Context
from reward.metrics import DEPTH, judge, measure, parse_metric

METRICS = ("recall@3", "recall@5", "recall@10", "ndcg@3", "ndcg@5", "comp@3", "comp@5", "mrr")


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """`rewrite-eval`."""

    output: str
    """The run folder to write."""
    data: str
    """A data set folder, or `bundled:sample`."""
    systems: dict[str, SystemSettings] = field(default_factory=dict)
    grid: Grid | None = None
    """More systems: retrievers x rewriters."""
    rewriters: dict[str, RewriterSettings] = field(default_factory=dict)
    """Those that systems name."""
    index: str | None = None
    split: str = "test"
    protocol: Protocol = "official"
    baseline: str | None = None
    """The system that others are compared with; the first when not given."""
    metrics: tuple[str, ...] = METRICS
    group_by: str | None = None
    """A key of the queries' metadata; figures are also given for each of its values."""
    most_queries: int = 0
    """Queries of a split at most, drawn by the seed, for a quick look; 0: all."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.grid.systems() if self.grid else ():
            if name in self.systems:
                raise BadInput(f"the system {name!r} is in `systems` and in the grid", "grid")
        if not self.all_systems:
            raise BadInput("there are no systems to evaluate")
        for name in (*self.all_systems, *self.rewriters):
            if not name.replace("-", "").replace("_", "").replace("+", "").isalnum():
                raise BadInput("a system's name, and a rewriter's, is made of letters, digits, -, _ and +")
        _check_rewriters(self)
        if self.baseline is not None and self.baseline not in self.all_systems:
            known = ", ".join(self.all_systems)
            raise BadInput(f"the baseline {self.baseline!r} is not among the systems {known}")
        if "recall@5" not in self.metrics:
            raise BadInput("metrics must hold recall@5: wins, losses and the headline are told by it")
        if self.seed < 0:
            raise BadInput("seed must not be negative")
        if self.most_queries < 0:
            raise BadInput("most_queries must not be negative")
        for metric in self.metrics:
            _, k = parse_metric(metric)
            if k is not None and k > DEPTH:
                raise BadInput(f"{metric} looks deeper than the {DEPTH} places that are kept")

    @property
    def all_systems(self) -> dict[str, SystemSettings]:
        """Those that were named, then the grid's."""
        return {**self.systems, **(self.grid.systems() if self.grid else {})}


def _check_rewriters(config: EvalConfig) -> None:
    for name, system in config.all_systems.items():
        wanted, known = system.rewriter, list(config.rewriters)
        place = "systems" if name in config.systems else "grid"
        if wanted is not None and wanted not in known:
            close = get_close_matches(wanted, known, n=1, cutoff=0.5)
            way = f"did you mean {close[0]}?" if close else f"`rewriters` has {', '.join(known) or 'none'}"
            raise BadInput(f"the system {name!r} names the rewriter {wanted!r}; {way}", place)
        if system.choose_fusion and config.split == DEV:
            raise BadInput(
                f"the system {name!r} chooses its fusion on dev, so dev cannot tell how good it is; "
                "evaluate another split, or give it a `fusion`",
                place,
            )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All that came out, before it is written down."""

    config: EvalConfig
    data: DataSet
    order: tuple[str, ...]
    """Query ids, in the order of all arrays."""
    baseline: str
    answers: Mapping[str, Ranked]
    values: Mapping[str, Mapping[str, np.ndarray]]
    """system -> metric -> (queries,)"""
    intervals: Mapping[str, Mapping[str, tuple[float, float]]]
    comparisons: tuple[ComparisonRow, ...]
    """Every other system with the baseline."""
    rewriting: tuple[ComparisonRow, ...]
    """Every system that rewrites with the raw query of its own retriever, where that was asked."""
    curves: Mapping[str, tuple[float, ...]]
    groups: Mapping[str, np.ndarray]
    """group -> which of the queries belong to it"""
    rewriters: Mapping[str, Rewritten] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """What was said, in the order of all arrays."""
        return [self.data.queries[query].text for query in self.order]

    @property
    def rewriter_rows(self) -> tuple[RewriterRow, ...]:
        """What the rewriters did."""
        return tuple(rewriter_row(name, each, self.order, self.texts) for name, each in self.rewriters.items())

    @property
    def fusion_rows(self) -> tuple[FusionRow, ...]:
        """How the systems that rewrite fuse."""
        dev = len(self.data.gold.get(DEV, {}))
        return tuple(fusion_row(name, each.fused, dev) for name, each in self.answers.items() if each.fused)

    @property
    def gains(self) -> tuple[ComparisonRow, ...]:
        """What rewriting adds to each retriever by recall@5; nothing where the comparisons tell it already, since all
        systems that rewrite have the baseline's raw query."""
        rows = tuple(row for row in self.rewriting if row.metric == METRIC)
        return rows if any(row.baseline != self.baseline for row in rows) else ()

    @property
    def names(self) -> dict[str, str]:
        """Tool id -> name."""
        return {tool.id: tool.name for tool in self.data.tools}

    def summary(self) -> dict[str, Any]:
        """metrics.json."""
        return {
            "dataset": self.data.name,
            "split": self.config.split,
            "protocol": self.config.protocol,
            "queries": len(self.order),
            "retriever": {"name": self.baseline, "fingerprint": self.answers[self.baseline].fingerprint},
            "systems": {name: means(values) for name, values in self.values.items()},
            "intervals": {name: dict(intervals) for name, intervals in self.intervals.items()},
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
            "rewriting": [asdict(comparison) for comparison in self.rewriting],
            "groups": {
                group: {"queries": int(mask.sum()), **{name: means(v, mask) for name, v in self.values.items()}}
                for group, mask in self.groups.items()
            },
            "fingerprints": {name: answer.fingerprint for name, answer in self.answers.items()},
            "made_of": {name: asdict(each.made_of) for name, each in self.answers.items() if each.made_of},
            "tools": len(self.data.tools),
            "seconds_per_query": {
                name: answer.seconds / len(self.order)
                for name, answer in self.answers.items()
                if answer.seconds is not None
            },
            "rewriters": rewriters_json(self.rewriter_rows, self.rewriters),
            "fusions": fusions_json(
                self.fusion_rows, {name: each.fused for name, each in self.answers.items() if each.fused}
            ),
            "split_report": dict(self.data.report),
        }


def means(values: Mapping[str, np.ndarray], mask: np.ndarray | None = None) -> dict[str, float]:
    """The mean of every metric, of all queries or of some."""
    return {metric: round(float((v if mask is None else v[mask]).mean()), 6) for metric, v in values.items()}


def evaluate(config: EvalConfig, context: Context | None = None) -> Evaluation:
    """Asks every system, scores every answer. Writes nothing."""
    data = apply_protocol(load_dataset(config.data), config.protocol)
    if config.most_queries:
        data = limit_queries(data, config.most_queries, config.seed)
    trial = Trial(data, config.protocol, config.split)
    order, wanted = trial.order(config.split), trial.gold(config.split)
    told = groups(data, order, config.group_by)
    systems = config.all_systems
    asked = ask(systems, config.rewriters, config.index, trial, context or make_context())
    answers = asked.systems
    judged = {name: judge([answer.rankings[query].ids for query in order], wanted) for name, answer in answers.items()}
    values = {name: {metric: measure(metric, each) for metric in config.metrics} for name, each in judged.items()}
    baseline = config.baseline or next(iter(systems))
    table = np.stack([values[name][metric] for name in values for metric in config.metrics], axis=1)
    bounds = iter(bootstrap_intervals(table, config.seed).tolist())
    intervals = {name: {metric: pair(next(bounds)) for metric in config.metrics} for name in values}
    return Evaluation(
        config,
        data,
        order,
        baseline,
        answers,
        values,
        intervals,
        compare(values, {name: baseline for name in values if name != baseline}, config.metrics, config.seed),
        _rewriting(values, own_raw(systems, config.index), config),
        {name: curve(each) for name, each in judged.items()},
        told,
        asked.rewriters,
    )


def _rewriting(
    values: Mapping[str, Mapping[str, np.ndarray]], own: Mapping[str, str], config: EvalConfig
) -> tuple[ComparisonRow, ...]:
    """Corrected metric by metric: a grid has hundreds of cells, and nobody asks of all of them at once."""
    rows = [compare(values, own, (metric,), config.seed) for metric in config.metrics]
    return tuple(row for each in rows for row in each)
