"""Small drawings of what changes with the steps of a training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pipelines.report.figures import at
from pipelines.report.markup import Html, tag

Points = Sequence[tuple[float, float]]
"""Steps and values."""


def trend(
    title: str, lines: Mapping[str, Points], reference: float | None = None, ceiling: float | None = None
) -> Html:
    """Lines over steps with a key below; nothing where there is nothing to draw. The reference is a dashed line."""
    known = {name: [point for point in points if math.isfinite(point[1])] for name, points in lines.items()}
    known = {name: points for name, points in known.items() if points}
    if not known:
        return Html()
    every = [point for points in known.values() for point in points]
    left, right = min(x for x, _ in every), max(x for x, _ in every)
    values = [y for _, y in every] + ([reference] if reference is not None else [])
    low, high = _room(min(values), max(values), ceiling)

    def x(step: float) -> float:
        return (step - left) / (right - left) if right > left else 0.5

    def y(value: float) -> float:
        return 1 - (value - low) / (high - low)

    heights = [low, (low + high) / 2, high]
    grid = [tag("line", x1=0, x2="100%", y1=at(y(each)), y2=at(y(each)), class_="grid") for each in heights]
    if reference is not None:
        there = at(y(reference))
        grid.append(tag("line", x1=0, x2="100%", y1=there, y2=there, class_="reference"))
    paths = [
        _path(place, [(x(step), y(value)) for step, value in points]) for place, points in enumerate(known.values())
    ]
    inner = tag("svg", *paths, viewBox="0 0 100 100", preserveAspectRatio="none", width="100%", height="100%")
    ends = "; ".join(f"{name} from {points[0][1]:.3g} to {points[-1][1]:.3g}" for name, points in known.items())
    plot = tag(
        "svg", *grid, inner, class_="plot", role="img", aria_label=f"{title}, steps {left:g} to {right:g}: {ends}"
    )
    scale = [tag("span", f"{each:.3g}", style=f"top:{at(y(each))}") for each in heights]
    steps = [tag("span", f"{step:g}", style=f"left:{at(x(step))}") for step in sorted({left, right})]
    return tag(
        "figure",
        tag("figcaption", title),
        tag(
            "div",
            tag("div", *scale, class_="y", aria_hidden="true"),
            plot,
            tag("div", *steps, class_="x", aria_hidden="true"),
            class_="trend",
        ),
        tag("ul", *_key(known, reference), class_="key-list"),
    )


def _room(low: float, high: float, ceiling: float | None) -> tuple[float, float]:
    """Some room around the values, but none beyond what such values can be."""
    rest = (high - low) * 0.08 or abs(high) * 0.1 or 0.5
    top = high + rest if ceiling is None else min(high + rest, max(ceiling, high))
    return (max(0.0, low - rest) if low >= 0 else low - rest), top


def _path(place: int, places: Sequence[tuple[float, float]]) -> Html:
    steps = " ".join(f"{x * 100:.2f},{y * 100:.2f}" for x, y in places)
    dots = "".join(f"M{x * 100:.2f} {y * 100:.2f}h0" for x, y in places) if len(places) <= 40 else ""
    marks = tag("path", d=dots, class_="dots") if dots else Html()
    return tag("g", tag("path", d=f"M{steps}", class_="line"), marks, class_=f"s{place}")


def _key(lines: Mapping[str, Points], reference: float | None) -> list[Html]:
    rows = []
    for place, (name, points) in enumerate(lines.items()):
        first, last = f"{points[0][1]:.3g}", f"{points[-1][1]:.3g}"
        said = f"{name} {first} → {last}" if len(points) > 1 else f"{name} {last}"
        rows.append(tag("li", tag("span", class_="swatch"), said, class_=f"s{place}"))
    if reference is not None:
        rows.append(tag("li", tag("span", class_="swatch dashed"), f"raw query alone {reference:.3g}", class_="base"))
    return rows
