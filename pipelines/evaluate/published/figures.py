"""A file of figures: what came out of one run, small enough to be committed, with all that is needed to judge it.

Runs of this machine become such files by `rewrite-eval matrix --keep RUN`. What was measured where no run folder came
back from, by a script on a GPU machine say, is written by hand or by that script. What somebody published is another.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Literal

from pipelines import config as configs
from retrievers.errors import BadInput

RETRIEVERS = {
    "bm25": "BM25",
    "dense": "dense",
    "dense-tuned": "fine-tuned dense",
    "hybrid": "hybrid",
    "masstool": "MassTool",
    "toolgen": "ToolGen",
    "toolweaver": "ToolWeaver",
}
"""The table's rows, and how they are called there."""
REWRITERS = {"none": "none", "rules": "rules", "zero-shot": "zero-shot", "sft": "SFT", "aligned": "aligned"}
"""The table's columns."""
HEAD = "recall@5"
"""The metric of the table; lists have the others."""
ALIKE = 0.005
"""Two figures for one place of the table may differ by so much: the same system, measured twice."""
Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One system's figures."""

    retriever: str
    """bm25, dense, dense-tuned, hybrid, masstool, toolgen, toolweaver; others stand below these."""
    metrics: Metrics = field(default_factory=dict)
    rewriter: Literal["none", "rules", "zero-shot", "sft", "aligned"] = "none"
    name: str = ""
    """What sets this system apart: model, settings, fusion."""
    system: str = ""
    """Its name in the run folder."""
    variant: bool = False
    """Stands in the list, and not in the table of retrievers and rewriters, which has one figure a place."""
    ranges: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Lowest and highest of several seeds; `metrics` are their means then."""
    groups: dict[str, Metrics] = field(default_factory=dict)
    """Groups of queries, such as ToolBench's, and the metrics of each."""
    against: str = ""
    """What p compares with, in words: the raw query, or another system."""
    p_values: Metrics = field(default_factory=dict)
    """Metric -> p of a paired test, not corrected for the number of comparisons."""
    p_below: Metrics = field(default_factory=dict)
    """The same where only a bound is known: `0.001` reads p < .001."""
    milliseconds: float | None = None
    """A query, rewriting included; how it was measured belongs into the note."""
    parameters: int | None = None
    """Of all models that answer a query."""
    note: str = ""

    def __post_init__(self) -> None:
        if not self.metrics and not self.groups:
            raise BadInput("a row without a figure", "metrics")
        for name, metrics in {"": self.metrics, **self.groups}.items():
            for metric, value in metrics.items():
                _check(metric, value, f" of {name}" if name else "")
        for metric, bounds in self.ranges.items():
            low_high = len(bounds) == 2 and bounds[0] <= self.metrics.get(metric, math.nan) <= bounds[1]
            if not low_high:
                raise BadInput(f"the range of {metric} is [lowest, highest] around its mean", "ranges")
        if any(not 0 <= p <= 1 for p in (*self.p_values.values(), *self.p_below.values())):
            raise BadInput("a p-value lies between 0 and 1", "p_values")
        if (self.p_values or self.p_below) and not self.against:
            raise BadInput("p compares with something; say with what", "against")
        if self.milliseconds is not None and self.milliseconds <= 0:
            raise BadInput("milliseconds are positive", "milliseconds")


def _check(metric: str, value: float, where: str) -> None:
    if not re.fullmatch(r"(recall|ndcg|comp|ndcg_toolgen)@[1-9]\d*|mrr", metric):
        raise BadInput(f"{metric} is no metric; such are recall@5, ndcg@5, comp@5, mrr, ndcg_toolgen@5", "metrics")
    if not 0 <= value <= 1:
        raise BadInput(f"{metric}{where} is {value:g}; metrics lie between 0 and 1, percentages do not belong here")


@dataclass(frozen=True, slots=True)
class Figures:
    """A file of figures: one data set, one split, one machine."""

    dataset: str
    rows: tuple[FigureRow, ...]
    source: Literal["measured", "published"] = "measured"
    protocol: str = "official"
    split: str = "test"
    queries: int = 0
    """How many were asked; 0: not told."""
    tools: int = 0
    command: str = ""
    """What somebody types to measure it again."""
    machine: str = ""
    date: str = ""
    """YYYY-MM-DD: when it was measured, or else written down."""
    seeds: tuple[int, ...] = ()
    commit: str = ""
    run: str = ""
    """The run folder it came from, where there was one."""
    note: str = ""
    paper: str = ""
    """Where it was published."""
    comparable: bool | None = None
    reason: str = ""
    """Why a published figure may, or may not, be compared with ours."""

    def __post_init__(self) -> None:
        needed = ("paper", "reason") if self.source == "published" else ("command", "machine", "date")
        for name in needed:
            if not getattr(self, name):
                raise BadInput(f"{self.source} figures need a {name}", name)
        if self.source == "published" and self.comparable is None:
            raise BadInput("say whether the published figures are comparable: true or false", "comparable")
        if self.source == "measured" and (not self.seeds or self.queries < 1):
            raise BadInput("measured figures need the seeds they came from, and the number of queries")
        if not self.rows:
            raise BadInput("a file of figures without rows", "rows")
        if self.date:
            try:
                date.fromisoformat(self.date)
            except ValueError as error:
                raise BadInput(f"a date is written YYYY-MM-DD, not {self.date}", "date") from error


def read_figures(folder: Path) -> dict[str, Figures]:
    """All files of figures of a folder by their names; two different ones for the same place are refused."""
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}; figures are kept there by `rewrite-eval matrix --keep RUN`")
    found = {path.stem: read_file(path) for path in sorted(folder.glob("*.json"))}
    refuse_twins(found)
    return found


def read_file(path: Path) -> Figures:
    """One file, checked; the message of a faulty one names file and key."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} is not a file of figures ({error})") from error
    return configs.parse(Figures, data, str(path))


def refuse_twins(found: Mapping[str, Figures]) -> None:
    """A place of the table has one figure, or a sentence that names the two files."""
    taken: dict[tuple[str, ...], tuple[str, float | None]] = {}
    for name, figures in found.items():
        if figures.source == "published" or figures.split != "test":
            continue
        for row in figures.rows:
            place = (figures.dataset, figures.protocol, row.retriever, row.rewriter)
            if row.variant:
                continue
            value = row.metrics.get(HEAD)
            other, known = taken.setdefault(place, (name, value))
            if other == name and known is value:
                continue
            if value is None or known is None or abs(value - known) > ALIKE:
                what = f"{row.retriever} with rewriter {row.rewriter} on {figures.dataset}, {figures.protocol}"
                raise BadInput(
                    f"{other}.json and {name}.json have different figures for {what}; mark one of the two rows "
                    "`variant: true`"
                )
