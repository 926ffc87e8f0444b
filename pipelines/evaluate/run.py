"""`rewrite-eval`: systems x metrics on one split, with significance, wins and losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from pipelines.context import make_context
from pipelines.data.dataset import DataSet, limit_queries, load_dataset
from pipelines.data.splits import Protocol, apply_protocol
from pipelines.evaluate.compare import compare, compare_groups, group_masks, recall_curve, rounded_interval
from pipelines.evaluate.context import EvalQueries
from pipelines.evaluate.grid import EvalGrid, raw_counterparts
from pipelines.evaluate.rewriter_stats import fusion_row, fusions_json, rewriter_row, rewriters_json
from pipelines.evaluate.rewritten_systems import DEV, METRIC, RewriterAnswers
from pipelines.evaluate.significance import bootstrap_intervals
from pipelines.evaluate.systems import SystemAnswers, SystemSettings, answer_queries
from pipelines.index.defaults import AUTO
from pipelines.report.data import ComparisonRow, FusionRow, RewriterRow
from pipelines.rerank.settings import RerankSettings
from pipelines.rewriters import RewriterSettings
from retrievers.errors import BadInput
from retrievers.kind import Context
from reward.metrics import DEPTH, judge, measure, parse_metric

RAW, REWRITTEN, RERANKED = "raw", "rewritten", "reranked"
"""The systems of the block `index`, `retriever`, `rewriter`, `rerank`."""
METRICS = ("recall@3", "recall@5", "recall@10", "ndcg@3", "ndcg@5", "comp@3", "comp@5", "mrr")


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """`rewrite-eval`."""

    output: str
    """The run folder to write."""
    data: str
    """A data set folder, or `bundled:sample`."""
    systems: dict[str, SystemSettings] = field(default_factory=dict)
    grid: EvalGrid | None = None
    """More systems: retrievers x rewriters."""
    rewriters: dict[str, RewriterSettings] = field(default_factory=dict)
    """Rewriters that systems name."""
    index: str | None = None
    """The index of systems that name none."""
    retriever: str | None = None
    """With `index`, `rewriter` and `rerank` the block of a serve or batch config: adds the systems `raw`, `rewritten`
    and `reranked`. Not set: `auto`, if there is a `rewriter`, a `rerank` or no other system."""
    rewriter: RewriterSettings | None = None
    rerank: RerankSettings | None = None
    """Reranks the list of `rewritten`, or of `raw` without a rewriter."""
    split: str = "test"
    protocol: Protocol = "official"
    baseline: str | None = None
    """The system that others are compared with; the first when not given."""
    metrics: tuple[str, ...] = METRICS
    group_by: str | None = None
    """A metadata key of the queries; figures are also given for each of its values."""
    max_queries: Annotated[int, Ge(0)] = 0
    """Queries per split at most, drawn by the seed, for a quick look; 0: all."""
    seed: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        for name in (*self._block_systems, *(self.grid.systems() if self.grid else ())):
            if name in self.systems:
                raise BadInput(f"the system {name!r} is defined twice; name that of `systems` otherwise", "systems")
        if not self.all_systems:
            raise BadInput("there are no systems to evaluate; name an `index`, or some in `systems` or `grid`")
        for name in (*self.all_systems, *self.rewriters):
            if not name.replace("-", "").replace("_", "").replace("+", "").isalnum():
                raise BadInput(f"names of systems and rewriters consist of letters, digits, -, _ and +, got {name!r}")
        _check_rewriters(self)
        if self.baseline is not None and self.baseline not in self.all_systems:
            known = ", ".join(self.all_systems)
            raise BadInput(f"must be one of the systems {known}, got {self.baseline!r}", "baseline")
        if METRIC not in self.metrics:
            raise BadInput(f"must hold {METRIC}, by which wins and losses are counted, got {self.metrics}", "metrics")
        for metric in self.metrics:
            _, k = parse_metric(metric)
            if k is not None and k > DEPTH:
                raise BadInput(f"k must be at most {DEPTH}, got {metric!r}", "metrics")

    @property
    def all_systems(self) -> dict[str, SystemSettings]:
        """`raw` and `rewritten` of the block, then `systems`, then the grid's."""
        return {**self._block_systems, **self.systems, **(self.grid.systems() if self.grid else {})}

    @property
    def all_rewriters(self) -> dict[str, RewriterSettings]:
        """`rewriters`, with that of the block."""
        return self.rewriters if self.rewriter is None else {REWRITTEN: self.rewriter, **self.rewriters}

    @property
    def _block_systems(self) -> dict[str, SystemSettings]:
        alone = self.index is not None and not self.systems and self.grid is None
        if self.retriever is None and self.rewriter is None and self.rerank is None and not alone:
            return {}
        retriever = self.retriever or AUTO
        systems = {RAW: SystemSettings(retriever)}
        if self.rewriter:
            systems[REWRITTEN] = SystemSettings(retriever, rewriter=REWRITTEN)
        if self.rerank:
            rewriter = REWRITTEN if self.rewriter else None
            systems[RERANKED] = SystemSettings(retriever, rewriter=rewriter, rerank=self.rerank)
        return systems


def _check_rewriters(config: EvalConfig) -> None:
    known = list(config.all_rewriters)
    for name, system in config.all_systems.items():
        key = "systems" if name in config.systems else "grid"
        if system.rewriter is not None and system.rewriter not in known:
            close = get_close_matches(system.rewriter, known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"`rewriters` has {', '.join(known) or 'none'}"
            raise BadInput(f"the system {name!r} names the rewriter {system.rewriter!r}; {hint}", key)
        if system.choose_fusion and config.split == DEV:
            raise BadInput(
                f"the system {name!r} chooses its fusion on dev, so dev cannot measure it; "
                "evaluate another split, or give it a `fusion`",
                key,
            )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All results, before they are written."""

    config: EvalConfig
    data: DataSet
    order: tuple[str, ...]
    """Query ids, in the order of all arrays."""
    baseline: str
    answers: Mapping[str, SystemAnswers]
    values: Mapping[str, Mapping[str, np.ndarray]]
    """system -> metric -> (queries,)"""
    intervals: Mapping[str, Mapping[str, tuple[float, float]]]
    comparisons: tuple[ComparisonRow, ...]
    """Every other system with the baseline."""
    rewriting: tuple[ComparisonRow, ...]
    """Every rewriting system with the raw query of its own retriever, if that is a system too."""
    curves: Mapping[str, tuple[float, ...]]
    groups: Mapping[str, np.ndarray]
    """group -> mask of its queries"""
    group_comparisons: Mapping[str, tuple[ComparisonRow, ...]]
    """group -> every other system with the baseline"""
    rewriters: Mapping[str, RewriterAnswers]

    @property
    def texts(self) -> list[str]:
        """Query texts, in the order of all arrays."""
        return [self.data.queries[query].text for query in self.order]

    @property
    def rewriter_rows(self) -> tuple[RewriterRow, ...]:
        """Statistics of the rewriters."""
        return tuple(rewriter_row(name, answers, self.order, self.texts) for name, answers in self.rewriters.items())

    @property
    def fusion_rows(self) -> tuple[FusionRow, ...]:
        """Fusions of the rewriting systems."""
        dev = len(self.data.gold.get(DEV, {}))
        return tuple(fusion_row(name, answers.fusion, dev) for name, answers in self.answers.items() if answers.fusion)

    @property
    def gains(self) -> tuple[ComparisonRow, ...]:
        """Recall@5 gained by rewriting, per retriever; empty if the comparisons with the baseline show it already."""
        rows = tuple(row for row in self.rewriting if row.metric == METRIC)
        return rows if any(row.baseline != self.baseline for row in rows) else ()

    @property
    def names(self) -> dict[str, str]:
        """Tool id -> name."""
        return {tool.id: tool.name for tool in self.data.tools}

    def summary(self) -> dict[str, Any]:
        """The content of metrics.json."""
        answers = self.answers
        return {
            "dataset": self.data.name,
            "split": self.config.split,
            "protocol": self.config.protocol,
            "queries": len(self.order),
            "retriever": {"name": self.baseline, "fingerprint": answers[self.baseline].fingerprint},
            "systems": {name: means(values) for name, values in self.values.items()},
            "intervals": {name: dict(intervals) for name, intervals in self.intervals.items()},
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
            "rewriting": [asdict(comparison) for comparison in self.rewriting],
            "groups": {
                group: {"queries": int(mask.sum()), **{name: means(v, mask) for name, v in self.values.items()}}
                for group, mask in self.groups.items()
            },
            "group_comparisons": {
                group: [asdict(comparison) for comparison in rows] for group, rows in self.group_comparisons.items()
            },
            "fingerprints": {name: answer.fingerprint for name, answer in answers.items()},
            "made_of": {name: asdict(answer.description) for name, answer in answers.items() if answer.description},
            "tools": len(self.data.tools),
            "seconds_per_query": {
                name: answer.seconds / len(self.order) for name, answer in answers.items() if answer.seconds is not None
            },
            "rewriters": rewriters_json(self.rewriter_rows, self.rewriters),
            "fusions": fusions_json(
                self.fusion_rows, {name: answer.fusion for name, answer in answers.items() if answer.fusion}
            ),
            "split_report": dict(self.data.report),
            "nothing_fits": {
                name: sum(not ranking for ranking in answers[name].rankings.values()) / len(self.order)
                for name, system in self.config.all_systems.items()
                if system.min_score is not None
            },
            "rerankers": {name: asdict(one.reranking) for name, one in answers.items() if one.reranking},
            "returned": {name: asdict(one.returned) for name, one in answers.items() if one.returned},
        }


def means(values: Mapping[str, np.ndarray], mask: np.ndarray | None = None) -> dict[str, float]:
    """The mean of every metric over all queries, or over those of a mask."""
    return {metric: round(float((v if mask is None else v[mask]).mean()), 6) for metric, v in values.items()}


def evaluate(config: EvalConfig, context: Context | None = None) -> Evaluation:
    """Run every system and score its answers. Writes nothing."""
    data = apply_protocol(load_dataset(config.data), config.protocol)
    if config.max_queries:
        data = limit_queries(data, config.max_queries, config.seed)
    queries = EvalQueries(data, config.protocol, config.split)
    order, gold = queries.order(config.split), queries.gold(config.split)
    groups = group_masks(data, order, config.group_by)
    systems, metrics = config.all_systems, config.metrics
    answers, rewriters = answer_queries(systems, config.all_rewriters, config.index, queries, context or make_context())
    judged = {name: judge([answer.rankings[query].ids for query in order], gold) for name, answer in answers.items()}
    values = {name: {metric: measure(metric, one) for metric in metrics} for name, one in judged.items()}
    baseline = config.baseline or next(iter(systems))
    table = np.stack([values[name][metric] for name in values for metric in metrics], axis=1)
    bounds = iter(bootstrap_intervals(table, config.seed).tolist())
    counterparts = raw_counterparts(systems, config.index)
    # Corrected metric by metric: a grid has hundreds of cells, and they are not read as one question.
    others = {name: baseline for name in values if name != baseline}
    rewriting = [row for metric in metrics for row in compare(values, counterparts, (metric,), config.seed)]
    return Evaluation(
        config=config,
        data=data,
        order=order,
        baseline=baseline,
        answers=answers,
        values=values,
        intervals={name: {metric: rounded_interval(next(bounds)) for metric in metrics} for name in values},
        comparisons=compare(values, others, metrics, config.seed),
        rewriting=tuple(rewriting),
        curves={name: recall_curve(one) for name, one in judged.items()},
        groups=groups,
        group_comparisons=compare_groups(values, others, metrics, groups, config.seed),
        rewriters=rewriters,
    )
