"""`rewrite-eval`: systems x metrics on one split, with significance, wins and losses, and a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipelines.data import DataSet, load_dataset
from pipelines.index import make_context
from pipelines.protocols import Protocol, apply_protocol
from pipelines.report.data import ComparisonRow
from pipelines.significance import bootstrap_intervals, holm, randomisation_test
from pipelines.systems import Ranked, SystemSettings, ask
from retrievers.errors import BadInput
from retrievers.kinds import Context
from reward.metrics import DEPTH, Judged, judge, measure, parse_metric, recall_at_k

METRICS = ("recall@3", "recall@5", "recall@10", "ndcg@3", "ndcg@5", "comp@3", "comp@5", "mrr")


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """`rewrite-eval`."""

    output: str
    """The run folder to write."""
    data: str
    """A data set folder, or `bundled:sample`."""
    systems: dict[str, SystemSettings]
    index: str | None = None
    split: str = "test"
    protocol: Protocol = "official"
    baseline: str | None = None
    """The system that others are compared with; the first when not given."""
    metrics: tuple[str, ...] = METRICS
    group_by: str | None = None
    """A key of the queries' metadata; figures are also given for each of its values."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.systems:
            raise BadInput("there are no systems to evaluate")
        if any(not name.replace("-", "").replace("_", "").replace("+", "").isalnum() for name in self.systems):
            raise BadInput("a system's name is made of letters, digits, -, _ and +")
        if self.baseline is not None and self.baseline not in self.systems:
            raise BadInput(f"the baseline {self.baseline!r} is not among the systems {', '.join(self.systems)}")
        if "recall@5" not in self.metrics:
            raise BadInput("metrics must hold recall@5: wins, losses and the headline are told by it")
        if self.seed < 0:
            raise BadInput("seed must not be negative")
        for metric in self.metrics:
            _, k = parse_metric(metric)
            if k is not None and k > DEPTH:
                raise BadInput(f"{metric} looks deeper than the {DEPTH} places that are kept")


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
    curves: Mapping[str, tuple[float, ...]]
    groups: Mapping[str, np.ndarray]
    """group -> which of the queries belong to it"""

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
            "groups": {
                group: {"queries": int(mask.sum()), **{name: means(v, mask) for name, v in self.values.items()}}
                for group, mask in self.groups.items()
            },
            "fingerprints": {name: answer.fingerprint for name, answer in self.answers.items()},
            "seconds_per_query": {
                name: answer.seconds / len(self.order)
                for name, answer in self.answers.items()
                if answer.seconds is not None
            },
            "split_report": dict(self.data.report),
        }


def means(values: Mapping[str, np.ndarray], mask: np.ndarray | None = None) -> dict[str, float]:
    """The mean of every metric, of all queries or of some."""
    return {metric: round(float((v if mask is None else v[mask]).mean()), 6) for metric, v in values.items()}


def evaluate(config: EvalConfig, context: Context | None = None) -> Evaluation:
    """Asks every system, scores every answer. Writes nothing."""
    data = apply_protocol(load_dataset(config.data), config.protocol)
    gold = data.split(config.split)
    order = tuple(sorted(gold))
    answers = ask(config.systems, config.index, data, config.protocol, order, context or make_context())
    wanted = [gold[query] for query in order]
    judged = {name: judge([answer.rankings[query].ids for query in order], wanted) for name, answer in answers.items()}
    values = {name: {metric: measure(metric, each) for metric in config.metrics} for name, each in judged.items()}
    baseline = config.baseline or next(iter(config.systems))
    table = np.stack([values[name][metric] for name in values for metric in config.metrics], axis=1)
    bounds = iter(bootstrap_intervals(table, config.seed).tolist())
    intervals = {name: {metric: _pair(next(bounds)) for metric in config.metrics} for name in values}
    return Evaluation(
        config,
        data,
        order,
        baseline,
        answers,
        values,
        intervals,
        _compare(values, baseline, config),
        {name: _curve(each) for name, each in judged.items()},
        _groups(data, order, config.group_by),
    )


def _compare(
    values: Mapping[str, Mapping[str, np.ndarray]], baseline: str, config: EvalConfig
) -> tuple[ComparisonRow, ...]:
    pairs = [(name, metric) for name in values if name != baseline for metric in config.metrics]
    if not pairs:
        return ()
    differences = np.stack([values[name][metric] - values[baseline][metric] for name, metric in pairs], axis=1)
    p_values = randomisation_test(differences, config.seed).tolist()
    bounds = bootstrap_intervals(differences, config.seed).tolist()
    corrected = holm(p_values)
    return tuple(
        ComparisonRow(
            name,
            baseline,
            metric,
            round(float(column.mean()), 6),
            _pair(bound),
            p_value,
            p_holm,
            int((column > 1e-12).sum()),
            int((column < -1e-12).sum()),
            int((np.abs(column) <= 1e-12).sum()),
        )
        for (name, metric), column, bound, p_value, p_holm in zip(
            pairs, differences.T, bounds, p_values, corrected, strict=True
        )
    )


def _pair(bound: Sequence[float]) -> tuple[float, float]:
    return round(bound[0], 6), round(bound[1], 6)


def _curve(judged: Judged, upto: int = 20) -> tuple[float, ...]:
    return tuple(float(recall_at_k(judged, k).mean()) for k in range(1, upto + 1))


def _groups(data: DataSet, order: Sequence[str], key: str | None) -> dict[str, np.ndarray]:
    if key is None:
        return {}
    labels = [data.queries[query].metadata.get(key) for query in order]
    if all(label is None for label in labels):
        raise BadInput(f"no query of {data.name} has {key!r} in its metadata to group by")
    names = sorted({str(label) for label in labels})
    return {name: np.array([str(label) == name for label in labels]) for name in names}
