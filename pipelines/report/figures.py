"""Small SVG drawings. Places along x are percentages, so that a drawing fits any width and its text keeps its size."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipelines.report.data import ComparisonRow, ReportData
from pipelines.report.markup import Html, foreign, join, tag
from pipelines.report.wording import bounds, metric_label, percent, points

COLOURS = 7
"""How many the style sheet has for systems; the baseline is grey."""
CEILINGS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)


def colour(data: ReportData, system: str) -> str:
    """The class that gives a system its colour (and its dashes), the same one in every drawing."""
    others = [row.name for row in data.systems if row.name != data.baseline]
    return f"s{others.index(system) % COLOURS}" if system in others else "base"


def at(share: float) -> str:
    """A share of the width, as SVG takes it."""
    return f"{round(min(max(share, 0.0), 1.0) * 100, 2):g}%"


def bars(data: ReportData, metric: str) -> Html:
    """A bar for each system with its interval; the baseline's value goes through all of them as a dashed line."""
    rows = [row for row in data.systems if math.isfinite(row.values.get(metric, math.nan))]
    highest = max((max(row.values[metric], *row.intervals.get(metric, (0.0,))) for row in rows), default=1.0)
    top = next((ceiling for ceiling in CEILINGS if highest <= ceiling), highest)
    base = next((row.values[metric] for row in rows if row.name == data.baseline and len(rows) > 1), None)
    items = []
    for row in rows:
        interval = row.intervals.get(metric)
        label = f"{row.name}: {percent(row.values[metric])}" + (f", interval {bounds(interval)}" if interval else "")
        drawing = _bar(row.values[metric] / top, [bound / top for bound in interval or ()], base and base / top, label)
        name = tag("span", foreign(row.name), class_="name")
        value = tag("b", percent(row.values[metric]))
        figure = tag("span", value, " ", tag("small", bounds(interval)), class_="value")
        items.append(tag("li", name, figure, drawing, class_=colour(data, row.name)))
    ticks = [tag("text", f"{top * step * 25:g}", x=at(step / 4), y=12, class_=f"tick t{step}") for step in range(5)]
    axis = tag("svg", *ticks, class_="axis", aria_hidden="true", height=16)
    return tag("ol", *items, tag("li", axis, class_="ticks", aria_hidden="true"), class_="bars")


def _bar(value: float, interval: Sequence[float], base: float | None, label: str) -> Html:
    parts = [tag("line", x1=at(step / 4), x2=at(step / 4), y1=0, y2="100%", class_="grid") for step in range(5)]
    parts.append(tag("rect", x=0, y=6, width=at(value), height=16, class_="fill"))
    if base is not None:
        parts.append(tag("line", x1=at(base), x2=at(base), y1=0, y2="100%", class_="reference"))
    if len(interval) == 2:
        low, high = map(at, interval)
        parts.append(tag("line", x1=low, x2=high, y1=14, y2=14, class_="whisker"))
        parts.extend(tag("line", x1=end, x2=end, y1=9, y2=19, class_="whisker") for end in (low, high))
    return tag("svg", *parts, class_="bar", role="img", aria_label=label, height=28)


def difference(row: ComparisonRow, limit: float) -> Html:
    """A difference and its interval around zero; `limit` is where the drawing ends."""
    low, high, middle = (at(0.5 + 0.48 * value / (limit or 1)) for value in (*row.interval, row.difference))
    label = f"{metric_label(row.metric)}: {points(row.difference)}, interval {bounds(row.interval)}"
    return tag(
        "svg",
        tag("line", x1="50%", x2="50%", y1=0, y2="100%", class_="zero"),
        tag("line", x1=low, x2=high, y1=9, y2=9, class_="whisker"),
        tag("circle", cx=middle, cy=9, r=4.5, class_="dot"),
        class_="forest",
        role="img",
        aria_label=label,
        height=18,
    )


def counts(row: ComparisonRow) -> Html:
    """How many queries are better, the same and worse: a stacked bar, and the counts in words."""
    total = row.better + row.same + row.worse
    parts, start = [], 0.0
    for kind, count in (("better", row.better), ("same", row.same), ("worse", row.worse)):
        share = count / total if total else 0.0
        parts.append(tag("rect", x=at(start), y=0, width=at(share), height="100%", class_=kind))
        start += share
    said = f"{row.better} better, {row.same} the same, {row.worse} worse"
    legend = tag(
        "span",
        tag("span", f"▲ {row.better:,}", class_="better"),
        tag("span", f"= {row.same:,}"),
        tag("span", f"▼ {row.worse:,}", class_="worse"),
        class_="counts",
    )
    return join([tag("svg", *parts, class_="stack", role="img", aria_label=said, height=10), legend])
