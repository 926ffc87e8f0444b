"""The data of a report: plain frozen dataclasses, filled by the evaluation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SystemRow:
    """One system, over all queries."""

    name: str
    values: dict[str, float]
    """metric -> mean, from 0 to 1"""
    intervals: dict[str, tuple[float, float]]
    """metric -> bootstrap interval of the mean"""
    seconds_per_query: float | None
    """None: not timed, its ranking came from a file."""
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One system against the baseline, or against another, in one metric."""

    system: str
    baseline: str
    metric: str
    difference: float
    interval: tuple[float, float]
    p_value: float
    p_holm: float
    better: int
    worse: int
    same: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group of queries, e.g. ToolBench's G1."""

    name: str
    queries: int
    values: dict[str, dict[str, float]]
    """system -> metric -> mean"""
    comparisons: tuple[ComparisonRow, ...] = ()
    """Every other system with the baseline, on the queries of this group."""


@dataclass(frozen=True, slots=True)
class RankedTool:
    """A tool in a ranking."""

    id: str
    name: str
    gold: bool


@dataclass(frozen=True, slots=True)
class QueryChange:
    """A query with another ranking than the baseline's."""

    query: str
    before: tuple[RankedTool, ...]
    """The baseline's top 5."""
    after: tuple[RankedTool, ...]
    """The system's top 5."""
    missing: tuple[str, ...]
    """Gold tools in neither."""
    difference: float


@dataclass(frozen=True, slots=True)
class SystemChanges:
    """The queries that a system gained and lost; counts are of all, the tuples hold the largest changes."""

    system: str
    baseline: str
    metric: str
    gained: tuple[QueryChange, ...]
    lost: tuple[QueryChange, ...]
    gained_count: int
    lost_count: int


@dataclass(frozen=True, slots=True)
class RewriteFigures:
    """Statistics of a rewriter; shares are of all queries."""

    queries: int
    parsed: float
    """Answered with a rewrite or with "no rewrite"."""
    none: float
    """Answered with "no rewrite"."""
    unparseable: float
    too_long: float
    """Not sent: the query alone is longer than the model's input."""
    unfinished: float
    """Answers cut off by the limit on tokens."""
    cut: float
    """Prompts with fewer candidates than the template shows, for lack of room."""
    lines: float | None
    """Mean of the rewritten queries; None without any."""
    tokens: float | None
    """Mean per answer; None if not counted."""
    seconds_per_query: float


@dataclass(frozen=True, slots=True)
class RewriteSample:
    """A query and its rewrite."""

    query: str
    """Its id."""
    utterance: str
    status: str
    lines: tuple[str, ...]
    answer: str = ""
    """The model's answer, if it could not be parsed."""


@dataclass(frozen=True, slots=True)
class RewriterRow:
    """One rewriter, over all queries."""

    name: str
    model: str
    template: str
    figures: RewriteFigures
    samples: tuple[RewriteSample, ...]


@dataclass(frozen=True, slots=True)
class TriedRow:
    """A fusion and its score on dev."""

    method: str
    raw: float
    score: float
    skip_rewrite_above: float | None = None


@dataclass(frozen=True, slots=True)
class FusionRow:
    """The fusion of a system."""

    system: str
    rewriter: str
    method: str
    raw: float
    """The raw query's share."""
    metric: str = ""
    """The metric by which it was chosen on dev; "" if the config gives it."""
    queries: int = 0
    """Of dev."""
    tried: tuple[TriedRow, ...] = ()
    """The chosen fusion, the best others on dev, and the raw query alone."""
    skip_rewrite_above: float | None = None
    """Raw queries whose first tool scores at least this much are not rewritten."""


@dataclass(frozen=True, slots=True)
class CodedTool:
    """A tool and its path in a tree of codes."""

    id: str
    name: str
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CodeTree:
    """The coded tools of a generative system."""

    system: str
    tools: tuple[CodedTool, ...]


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything in one report."""

    title: str
    dataset: str
    split: str
    protocol: str
    queries: int
    tools: int
    baseline: str
    metrics: tuple[str, ...]
    systems: tuple[SystemRow, ...]
    comparisons: tuple[ComparisonRow, ...]
    curve: dict[str, tuple[float, ...]]
    """system -> recall@1..n"""
    groups: tuple[GroupRow, ...]
    changes: tuple[SystemChanges, ...]
    facts: dict[str, str]
    """Machine, versions, command, seed, date."""
    notes: tuple[str, ...]
    rewriters: tuple[RewriterRow, ...] = ()
    fusions: tuple[FusionRow, ...] = ()
    gains: tuple[ComparisonRow, ...] = ()
    """Rewriting systems against the raw query of their own retriever, if that is not the baseline."""
    trees: tuple[CodeTree, ...] = ()
