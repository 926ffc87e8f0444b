"""Recall against k: lines that stretch with the page, and names that do not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipelines.report.data import ReportData
from pipelines.report.figures import at, colour
from pipelines.report.markup import Html, foreign, join, tag
from pipelines.report.wording import percent

CURVE_HEIGHT = 320
LABEL_HEIGHT = 19
"""Pixels, both; the style sheet stretches the drawing in width only."""


def recall_curve(data: ReportData) -> Html:
    """Recall against k as lines, each named at its end."""
    lines = {name: values for name, values in data.curve.items() if values and all(map(math.isfinite, values))}
    if not lines:
        return Html()
    tall = max(CURVE_HEIGHT, LABEL_HEIGHT * len(lines))  # room for all names
    longest = max(map(len, lines.values()))
    every = [value for values in lines.values() for value in values]
    low = max(0.0, math.floor(min(every) * 10 - 0.2) / 10)
    high = max(low + 0.1, min(1.0, math.ceil(max(every) * 10) / 10))
    heights = [low + (high - low) * step / 4 for step in range(5)]

    def x(place: int) -> float:
        return 0.5 if longest == 1 else place / (longest - 1)

    def y(value: float) -> float:
        return 1 - (value - low) / (high - low)

    grid = [tag("line", x1=0, x2="100%", y1=at(y(each)), y2=at(y(each)), class_="grid") for each in heights]
    paths = [
        _path(colour(data, name), [(x(place), y(value)) for place, value in enumerate(values)])
        for name, values in lines.items()
    ]
    inner = tag("svg", *paths, viewBox="0 0 100 100", preserveAspectRatio="none", width="100%", height="100%")
    said = "; ".join(f"{name} from {percent(values[0])} to {percent(values[-1])}" for name, values in lines.items())
    label = f"Recall in percent against the number of places k, 1 to {longest}: {said}"
    plot = tag("svg", *grid, inner, class_="plot", role="img", aria_label=label, height=tall)
    left = [tag("span", f"{each * 100:.3g}", style=f"top:{at(y(each))}") for each in heights]
    shown = [k for k in range(1, longest + 1) if k in {1, longest} or (k % 5 == 0 and longest - k > 1)]
    below = [tag("span", str(k), style=f"left:{at(x(k - 1))}") for k in shown]
    return tag(
        "div",
        tag("div", *left, class_="y", aria_hidden="true"),
        plot,
        _line_labels(data, {name: y(values[-1]) for name, values in lines.items()}, tall),
        tag("div", *below, class_="x", aria_hidden="true"),
        tag("div", "k, the number of places looked at", class_="x-title", aria_hidden="true"),
        class_="curve",
        style=f"--height:{tall}px",
    )


def _path(colour: str, places: Sequence[tuple[float, float]]) -> Html:
    steps = " ".join(f"{x * 100:.2f},{y * 100:.2f}" for x, y in places)
    # Strokes of no length with round ends: dots that stay round in a drawing that is stretched.
    dots = "".join(f"M{x * 100:.2f} {y * 100:.2f}h0" for x, y in places)
    return tag("g", tag("path", d=f"M{steps}", class_="line"), tag("path", d=dots, class_="dots"), class_=colour)


def _line_labels(data: ReportData, ends: dict[str, float], tall: int) -> Html:
    """The names beside the lines' ends, moved apart where they would overlap, with a leader each."""
    order = sorted(ends, key=lambda name: (ends[name], name))
    wanted = [ends[name] * tall for name in order]
    placed: list[float] = []
    for want in wanted:
        placed.append(max(want, placed[-1] + LABEL_HEIGHT) if placed else want)
    floor = tall + LABEL_HEIGHT / 2
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], floor)
        floor = placed[i] - LABEL_HEIGHT
    leaders = [
        tag("path", d=f"M0 {want:.1f}C10 {want:.1f} 10 {got:.1f} 20 {got:.1f}", class_=f"leader {colour(data, name)}")
        for name, want, got in zip(order, wanted, placed, strict=True)
    ]
    names = [
        tag(
            "span",
            tag("b", percent(data.curve[name][-1])),
            " ",
            foreign(name),
            style=f"top:{got:.1f}px",
            class_=colour(data, name),
        )
        for name, got in zip(order, placed, strict=True)
    ]
    return join(
        [
            tag("svg", *leaders, class_="leaders", width=20, height=tall, aria_hidden="true"),
            tag("div", *names, class_="names", aria_hidden="true"),
        ]
    )
