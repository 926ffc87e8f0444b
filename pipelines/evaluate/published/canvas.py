"""Small panels side by side, as one SVG file that needs nothing beside itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipelines.report.markup import Html, join, tag

WIDTH, HEIGHT, GAP = 300, 210, 26
"""Of a panel's drawing, and what is between panels."""
LEFT, TOP, BELOW = 34, 26, 40
COLUMNS = 3
INK, FAINT = "#222222", "#d9d9d9"
LEAST = 4
"""Tenths that a panel spans at least."""
Place = Callable[[float], float]
"""A value to where it stands."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A figure."""

    x: float
    y: float
    """0 to 1."""
    label: str
    """What it is, for whoever points at it."""
    colour: str
    letter: str = ""
    """Stands in it."""
    square: bool = False
    line: str = ""
    """Dots of the same name are joined, in the order of x."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One data set's figures."""

    title: str
    dots: Sequence[Dot]
    span: tuple[float, float]
    """Of x."""
    ticks: Mapping[int, str]
    """Where on x, and what stands there; a second line after a line break."""
    empty: str = "not run"
    """What stands in a panel without dots."""


def drawing(title: str, panels: Sequence[Panel], key: Mapping[str, str], letters: str = "") -> Html:
    """All panels with a title above and a key below: of colours, and of what letters mean."""
    across = min(COLUMNS, max(1, len(panels)))
    rows = math.ceil(len(panels) / COLUMNS)
    wide, high = LEFT + WIDTH + GAP, TOP + HEIGHT + BELOW
    width, height = max(across * wide + 20, 640), 40 + rows * high + 36
    parts = [tag("rect", width="100%", height="100%", fill="#ffffff"), _text(20, 26, title, size=16, weight="bold")]
    for place, panel in enumerate(panels):
        x, y = 10 + (place % COLUMNS) * wide + LEFT, 40 + (place // COLUMNS) * high + TOP
        parts.append(tag("g", *_panel(panel), transform=f"translate({x} {y})"))
    if not panels:
        parts.append(_text(20, 60, "nothing has been run yet", colour="#777777"))
    start = 20.0
    for name, colour in key.items():
        parts.append(tag("rect", x=start, y=height - 24, width=12, height=12, fill=colour))
        parts.append(_text(start + 18, height - 14, name))
        start += 40 + 7 * len(name)
    parts.append(_text(start + 10, height - 14, letters))
    box = f"0 0 {width} {height}"
    root = tag("svg", tag("title", title), *parts, xmlns="http://www.w3.org/2000/svg", viewBox=box, role="img")
    return Html(f"{root}\n")


def _panel(panel: Panel) -> list[Html]:
    first, last = panel.span
    values = [dot.y for dot in panel.dots]
    low, high = _range(min(values, default=0.0), max(values, default=1.0))

    def x(value: float) -> float:
        return round((min(max(value, first), last) - first) / (last - first) * WIDTH, 1)

    def y(value: float) -> float:
        return round((1 - (value - low) / (high - low)) * HEIGHT, 1)

    parts = [_text(0, -10, panel.title, weight="bold")]
    for step in range(round((high - low) * 10) + 1):
        value = low + step / 10
        parts.append(tag("line", x1=0, x2=WIDTH, y1=y(value), y2=y(value), stroke=FAINT))
        parts.append(_text(-6, y(value) + 4, f"{value:.1f}".removeprefix("0"), anchor="end", size=11))
    for place, word in panel.ticks.items():
        for line, piece in enumerate(word.split("\n")):
            grey = "#999999" if line else INK
            parts.append(_text(x(place), HEIGHT + 16 + 12 * line, piece, anchor="middle", size=11, colour=grey))
    if not panel.dots:
        parts.append(_text(WIDTH / 2, HEIGHT / 2, panel.empty, anchor="middle", colour="#999999"))
    return [*parts, *_lines(panel, x, y), *_dots(panel, x, y)]


def _range(lowest: float, highest: float) -> tuple[float, float]:
    """Tenths around the values, wide enough that chance does not look like a cliff."""
    low, high = math.floor(lowest * 10), math.ceil(highest * 10)
    while high - low < LEAST:
        low, high = (low - 1, high) if low > 0 and (high - low) % 2 else (low, high + 1)
        if high > 10:
            low, high = low - (high - 10), 10
    return max(0, low) / 10, min(10, high) / 10


def _lines(panel: Panel, x: Place, y: Place) -> list[Html]:
    found = []
    for name in dict.fromkeys(dot.line for dot in panel.dots if dot.line):
        joined = sorted((dot for dot in panel.dots if dot.line == name), key=lambda dot: dot.x)
        for one, other in pairwise(joined):
            ends = {"x1": x(one.x), "y1": y(one.y), "x2": x(other.x), "y2": y(other.y)}
            found.append(tag("line", **ends, stroke=one.colour, stroke_width=2))
    return found


def _dots(panel: Panel, x: Place, y: Place) -> list[Html]:
    """Those that say more, and the better ones, lie above the others."""
    found: list[Html] = []
    for dot in sorted(panel.dots, key=lambda dot: (bool(dot.letter), dot.y)):
        across, down = x(dot.x), y(dot.y)
        half, rim = (6, {"stroke": "#ffffff"}) if dot.letter else (5, {})
        if dot.square:
            corner = {"x": round(across - half, 1), "y": round(down - half, 1)}
            parts = [tag("rect", **corner, width=2 * half, height=2 * half, fill=dot.colour, **rim)]
        else:
            parts = [tag("circle", cx=across, cy=down, r=half, fill=dot.colour, **rim)]
        if dot.letter:
            white = {"weight": "bold", "anchor": "middle", "colour": "#ffffff"}
            parts.append(_text(across, down + 3, dot.letter, size=9, **white))
        found.append(tag("g", tag("title", dot.label), *parts) if dot.label else join(parts))
    return found


def _text(
    x: float, y: float, said: str, *, size: int = 13, weight: str = "normal", anchor: str = "start", colour: str = INK
) -> Html:
    font = "system-ui, sans-serif"
    style = {"font_family": font, "font_weight": weight, "text_anchor": anchor}
    return tag("text", said, x=round(x, 1), y=round(y, 1), fill=colour, font_size=size, **style)
