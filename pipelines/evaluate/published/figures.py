"""Files of figures: the results of one run, small enough to commit, with everything needed to judge them.

`rewrite-eval matrix --keep RUN` makes one from a run folder of this machine. Results of other machines, and figures
from papers, are files written by hand or by a script.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Gt, Interval

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
"""Rows of the table and their titles."""
REWRITERS = {"none": "none", "rules": "rules", "zero-shot": "zero-shot", "sft": "SFT", "aligned": "aligned"}
"""Columns of the table and their titles."""
HEAD = "recall@5"
"""The metric of the table; lists have the others."""
TOLERANCE = 0.005
"""Largest difference between two measurements of one cell of the table."""
Metrics = dict[str, Annotated[float, Interval(ge=0, le=1)]]


@dataclass(frozen=True, slots=True)
class FigureRow:
    """Figures of one system."""

    retriever: str
    """bm25, dense, dense-tuned, hybrid, masstool, toolgen or toolweaver; others are listed below these."""
    metrics: Metrics = field(default_factory=dict)
    rewriter: Literal["none", "rules", "zero-shot", "sft", "aligned"] = "none"
    name: str = ""
    """Model, settings, fusion: the details of this system."""
    system: str = ""
    """Its name in the run folder."""
    variant: bool = False
    """List this row, but keep it out of the table, which has one figure per cell."""
    ranges: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Metric -> lowest and highest of several seeds; `metrics` are their means then."""
    groups: dict[str, Metrics] = field(default_factory=dict)
    """Group of queries -> its metrics."""
    against: str = ""
    """The system that p compares with."""
    p_values: Metrics = field(default_factory=dict)
    """Metric -> p of a paired test, not corrected for the number of comparisons."""
    p_below: Metrics = field(default_factory=dict)
    """The same where only a bound is known: `0.001` reads p < .001."""
    milliseconds: Annotated[float, Gt(0)] | None = None
    """Per query, rewriting included."""
    parameters: int | None = None
    """Of all models that answer a query."""
    note: str = ""

    def __post_init__(self) -> None:
        if not self.metrics and not self.groups:
            raise BadInput("a row needs at least one figure, got none", "metrics")
        for metric in (name for metrics in (self.metrics, *self.groups.values()) for name in metrics):
            if not re.fullmatch(r"(recall|ndcg|comp|ndcg_toolgen)@[1-9]\d*|mrr", metric):
                known = "recall@5, ndcg@5, comp@5, mrr, ndcg_toolgen@5"
                raise BadInput(f"unknown metric, expected one such as {known}, got {metric!r}", "metrics")
        for metric, bounds in self.ranges.items():
            if len(bounds) != 2 or not bounds[0] <= self.metrics.get(metric, math.nan) <= bounds[1]:
                raise BadInput(f"{metric} must be [lowest, highest] around its mean, got {bounds}", "ranges")
        if (self.p_values or self.p_below) and not self.against:
            raise BadInput("p-values need the name of the system they compare with, got none", "against")


@dataclass(frozen=True, slots=True)
class FigureFile:
    """The figures of one data set, split and machine."""

    dataset: str
    rows: tuple[FigureRow, ...]
    source: Literal["measured", "published"] = "measured"
    protocol: str = "official"
    split: str = "test"
    queries: int = 0
    """0: unknown."""
    tools: int = 0
    command: str = ""
    """The command that measures the figures again."""
    machine: str = ""
    date: str = ""
    """YYYY-MM-DD."""
    seeds: tuple[int, ...] = ()
    commit: str = ""
    run: str = ""
    """The run folder, if there was one."""
    note: str = ""
    paper: str = ""
    """Where it was published."""
    comparable: bool | None = None
    """Whether a published figure may be compared with ours."""
    reason: str = ""
    """Why it may, or may not, be compared."""

    def __post_init__(self) -> None:
        published = self.source == "published"
        for name in ("paper", "reason", "comparable") if published else ("command", "machine", "date", "seeds"):
            if getattr(self, name) in ("", None, ()):
                raise BadInput(f"{self.source} figures need the key {name}", name)
        if not published and self.queries < 1:
            raise BadInput(f"measured figures need the number of queries, got {self.queries}", "queries")
        if not self.rows:
            raise BadInput("a file of figures needs at least one row, got none", "rows")
        if self.date:
            try:
                date.fromisoformat(self.date)
            except ValueError as error:
                raise BadInput(f"a date is written YYYY-MM-DD, got {self.date!r}", "date") from error


def read_figures(folder: Path) -> dict[str, FigureFile]:
    """All files of figures in a folder by name; refuses two different figures for one cell of the table."""
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}; `rewrite-eval matrix --keep RUN` writes figures there")
    files = {}
    for path in sorted(folder.glob("*.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadInput(f"{path} is not a file of figures ({error})") from error
        files[path.stem] = configs.parse(FigureFile, data, str(path))
    refuse_conflicts(files)
    return files


def refuse_conflicts(files: Mapping[str, FigureFile]) -> None:
    """Refuse two different figures for one cell of the table."""
    cells: dict[tuple[str, ...], tuple[str, float | None]] = {}
    for name, figures in files.items():
        if figures.source == "published" or figures.split != "test":
            continue
        for row in figures.rows:
            if row.variant:
                continue
            value = row.metrics.get(HEAD)
            cell = (figures.dataset, figures.protocol, row.retriever, row.rewriter)
            other, known = cells.setdefault(cell, (name, value))
            if other == name and known is value:
                continue
            if value is None or known is None or abs(value - known) > TOLERANCE:
                raise BadInput(
                    f"{other}.json and {name}.json have different figures for {row.retriever} with rewriter "
                    f"{row.rewriter} on {figures.dataset}, {figures.protocol}; mark one of the rows `variant: true`"
                )
