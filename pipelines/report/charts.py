"""Small SVG charts: bars with intervals, and lines. Positions are percentages, so a chart fits any width."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pipelines.report.data import ReportData
from pipelines.report.markup import Html, foreign, tag
from pipelines.report.wording import bounds, percent

COLOURS = 7
"""Colours for systems in the style sheet; the baseline is grey."""
CEILINGS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
Points = Sequence[tuple[float, float]]
"""Steps and values."""


def colour(data: ReportData, system: str) -> str:
    """The CSS class of a system's colour, the same in every chart."""
    others = [row.name for row in data.systems if row.name != data.baseline]
    return f"s{others.index(system) % COLOURS}" if system in others else "base"


def _position(share: float) -> str:
    return f"{round(min(max(share, 0.0), 1.0) * 100, 2):g}%"


def bars(data: ReportData, metric: str) -> Html:
    """One bar per system with its interval; the baseline's value is a dashed line through all of them."""
    rows = [row for row in data.systems if math.isfinite(row.values.get(metric, math.nan))]
    highest = max((max(row.values[metric], *row.intervals.get(metric, (0.0,))) for row in rows), default=1.0)
    top = next((ceiling for ceiling in CEILINGS if highest <= ceiling), highest)
    base = next((row.values[metric] for row in rows if row.name == data.baseline and len(rows) > 1), None)
    items = []
    for row in rows:
        value, interval = row.values[metric], row.intervals.get(metric)
        parts = [_vertical(step / 4, "grid") for step in range(5)]
        parts.append(tag("rect", x=0, y=6, width=_position(value / top), height=16, class_="fill"))
        if base is not None:
            parts.append(_vertical(base / top, "reference"))
        if interval:
            low, high = (_position(bound / top) for bound in interval)
            parts.append(tag("line", x1=low, x2=high, y1=14, y2=14, class_="whisker"))
        label = f"{row.name}: {percent(value)}" + (f", interval {bounds(interval)}" if interval else "")
        drawing = tag("svg", *parts, class_="bar", role="img", aria_label=label, height=28)
        name = tag("span", foreign(row.name), class_="name")
        figure = tag("span", tag("b", percent(value)), " ", tag("small", bounds(interval)), class_="value")
        items.append(tag("li", name, figure, drawing, class_=colour(data, row.name)))
    ticks = [
        tag("text", f"{top * step * 25:g}", x=_position(step / 4), y=12, class_=f"tick t{step}") for step in range(5)
    ]
    axis = tag("svg", *ticks, class_="axis", aria_hidden="true", height=16)
    return tag("ol", *items, tag("li", axis, class_="ticks", aria_hidden="true"), class_="bars")


def _vertical(share: float, kind: str) -> Html:
    return tag("line", x1=_position(share), x2=_position(share), y1=0, y2="100%", class_=kind)


def line_chart(
    title: str,
    lines: Mapping[str, Points],
    reference: float | None = None,
    ceiling: float | None = None,
    colours: Mapping[str, str] | None = None,
) -> Html:
    """Lines over steps with a key below; empty without finite values. The reference is a dashed line."""
    finite = {name: [point for point in points if math.isfinite(point[1])] for name, points in lines.items()}
    known = {name: points for name, points in finite.items() if points}
    if not known:
        return Html()
    classes = colours or {name: f"s{number}" for number, name in enumerate(known)}
    steps = [step for points in known.values() for step, _ in points]
    values = [value for points in known.values() for _, value in points] + ([] if reference is None else [reference])
    left, right = min(steps), max(steps)
    low, high = _range(min(values), max(values), ceiling)

    def x(step: float) -> float:
        return (step - left) / (right - left) if right > left else 0.5

    def y(value: float) -> float:
        return 1 - (value - low) / (high - low)

    heights = {low: "grid", (low + high) / 2: "grid", high: "grid"}
    rows = [*heights.items(), *([] if reference is None else [(reference, "reference")])]
    grid = [tag("line", x1=0, x2="100%", y1=_position(y(at)), y2=_position(y(at)), class_=kind) for at, kind in rows]
    paths = [_path(classes[name], [(x(step), y(value)) for step, value in points]) for name, points in known.items()]
    inner = tag("svg", *paths, viewBox="0 0 100 100", preserveAspectRatio="none", width="100%", height="100%")
    ends = "; ".join(f"{name} from {points[0][1]:.3g} to {points[-1][1]:.3g}" for name, points in known.items())
    label = f"{title}, steps {left:g} to {right:g}: {ends}"
    scale = [tag("span", f"{value:.3g}", style=f"top:{_position(y(value))}") for value in heights]
    labels = [tag("span", f"{step:g}", style=f"left:{_position(x(step))}") for step in sorted({left, right})]
    return tag(
        "figure",
        tag("figcaption", title),
        tag(
            "div",
            tag("div", *scale, class_="y", aria_hidden="true"),
            tag("svg", *grid, inner, class_="plot", role="img", aria_label=label),
            tag("div", *labels, class_="x", aria_hidden="true"),
            class_="trend",
        ),
        tag("ul", *_key(known, classes, reference), class_="key-list"),
    )


def _range(low: float, high: float, ceiling: float | None) -> tuple[float, float]:
    """The range of the values with some margin, but not below 0 for positive values, nor above the ceiling."""
    margin = (high - low) * 0.08 or abs(high) * 0.1 or 0.5
    top = high + margin if ceiling is None else min(high + margin, max(ceiling, high))
    return (max(0.0, low - margin) if low >= 0 else low - margin), top


def _path(class_: str, points: Points) -> Html:
    line = "M" + " ".join(f"{x * 100:.2f},{y * 100:.2f}" for x, y in points)
    # Strokes of no length with round ends: dots that stay round in a stretched drawing.
    dots = "".join(f"M{x * 100:.2f} {y * 100:.2f}h0" for x, y in points) if len(points) <= 40 else ""
    marks = tag("path", d=dots, class_="dots") if dots else Html()
    return tag("g", tag("path", d=line, class_="line"), marks, class_=class_)


def _key(lines: Mapping[str, Points], classes: Mapping[str, str], reference: float | None) -> list[Html]:
    rows = []
    for name, points in lines.items():
        first = f"{points[0][1]:.3g} → " if len(points) > 1 else ""
        text = foreign(f"{name} {first}{points[-1][1]:.3g}")
        rows.append(tag("li", tag("span", class_="swatch"), text, class_=classes[name]))
    if reference is not None:
        rows.append(tag("li", tag("span", class_="swatch dashed"), f"raw query alone {reference:.3g}", class_="base"))
    return rows
