"""What the report shows: plain frozen data, filled by the evaluation."""

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
    """None: it was not timed, its ranking came from a file."""
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
    """Some of the queries, e.g. ToolBench's G1."""

    name: str
    queries: int
    values: dict[str, dict[str, float]]
    """system -> metric -> mean"""


@dataclass(frozen=True, slots=True)
class RankedTool:
    """A tool at its place in a ranking."""

    id: str
    name: str
    gold: bool


@dataclass(frozen=True, slots=True)
class Change:
    """A query that was answered differently."""

    query: str
    before: tuple[RankedTool, ...]
    """The baseline's top 5."""
    after: tuple[RankedTool, ...]
    """The system's top 5."""
    missing: tuple[str, ...]
    """Gold tools in neither."""
    difference: float


@dataclass(frozen=True, slots=True)
class Changes:
    """The queries that one system gained and lost; the counts are of all, the tuples may hold the clearest only."""

    system: str
    baseline: str
    metric: str
    gained: tuple[Change, ...]
    lost: tuple[Change, ...]
    gained_count: int
    lost_count: int


@dataclass(frozen=True, slots=True)
class RewriteFigures:
    """What became of the queries that a rewriter was given; shares are of all of them."""

    queries: int
    parsed: float
    """Answered with a rewrite, or deliberately left alone."""
    none: float
    """Deliberately left alone."""
    unparseable: float
    too_long: float
    """Not asked: the query alone is more than the model reads."""
    unfinished: float
    """Answers that their cap on tokens ended."""
    cut: float
    """Asked with fewer candidates than the template shows, for want of room."""
    lines: float | None
    """The mean of those that were rewritten; None where none was."""
    tokens: float | None
    """The mean that was written for each query that was asked; None where nobody counted."""
    seconds_per_query: float


@dataclass(frozen=True, slots=True)
class RewriteSample:
    """A query and what a rewriter made of it."""

    query: str
    """Its id."""
    utterance: str
    status: str
    lines: tuple[str, ...]
    answer: str = ""
    """What the model wrote, where nothing in it could be used."""


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
    """One way to fuse and its score on dev."""

    method: str
    raw: float
    score: float
    skip_rewrite_above: float | None = None
    """From this score of its first tool on a raw query is left alone."""


@dataclass(frozen=True, slots=True)
class FusionRow:
    """How a system joins the raw query with its rewrite."""

    system: str
    rewriter: str
    method: str
    raw: float
    """The raw query's share."""
    metric: str = ""
    """By what it was chosen on dev; "" where the config chose."""
    queries: int = 0
    """Of dev."""
    tried: tuple[TriedRow, ...] = ()
    """What was taken, the best others that were tried on dev, and the raw query alone."""
    skip_rewrite_above: float | None = None
    """From this score of its first tool on a raw query is left alone."""


@dataclass(frozen=True, slots=True)
class CodedTool:
    """A tool and where it is in a tree of codes."""

    id: str
    name: str
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CodeTree:
    """The tools of a system that says them in codes."""

    system: str
    tools: tuple[CodedTool, ...]


@dataclass(frozen=True, slots=True)
class ReportData:
    """All of one report."""

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
    changes: tuple[Changes, ...]
    facts: dict[str, str]
    """Machine, versions, command, seed, date."""
    notes: tuple[str, ...]
    rewriters: tuple[RewriterRow, ...] = ()
    fusions: tuple[FusionRow, ...] = ()
    gains: tuple[ComparisonRow, ...] = ()
    """Systems that rewrite against their own retriever's raw query, where that is not the baseline's."""
    trees: tuple[CodeTree, ...] = ()
