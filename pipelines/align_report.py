"""report.html of an alignment: what became of the policy step by step, in curves and a table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.report.markup import Html, foreign, join, section, tag

WIDTH, HEIGHT = 520, 160
CURVES = {
    "Dev, with retrieval": ("eval_{metric}", "eval_seen_{metric}", "eval_unseen_{metric}"),
    "Reward of the answers": ("reward", "rewards/chosen", "rewards/rejected", "rewards/margins"),
    "Distance from the reference, nats an answer": ("kl",),
    "Answers that can be parsed, that differ": ("eval_parsed", "eval_distinct"),
    "Tokens an answer": ("eval_tokens", "completions/mean_length", "length"),
    "Loss": ("loss",),
}
COLOURS = ("#2a6fb0", "#b0552a", "#3a8a4d", "#7a4fa0")
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}
figure{margin:1.5rem 0;display:inline-block;vertical-align:top;width:30rem;max-width:100%}figcaption{font-weight:600}
svg{width:100%;height:auto;overflow:visible}table{border-collapse:collapse}td,th{padding:.2rem .8rem;text-align:right}
th:first-child,td:first-child{text-align:left}.key{font-size:.85rem;margin-right:1rem}.verdict{font-size:1.15rem}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181a1d}}"""


def align_page(folder: Path, algo: str, metrics: Mapping[str, Any]) -> str:
    """The page of a run: a sentence, curves, and the ways of fusion that dev was tried with."""
    rows, metric = read_figures(folder), _metric(metrics)
    curves = [
        _curve(title, {name: _points(rows, name) for name in _names(names, metric)}) for title, names in CURVES.items()
    ]
    shown = [curve for curve in curves if curve]
    start, best = metrics["start"][f"eval_{metric}"], metrics["best"]
    raw, step = metrics["raw"][metric], metrics["step"]
    said = f"{algo}: dev {metric} {start:.3f} at the start, {best:.3f} now (step {step}), raw {raw:.3f}."
    notes = [tag("p", said, class_="verdict")]
    if metrics["collapse"]:
        notes.append(tag("p", f"Stopped early: {metrics['collapse']}."))
    if metrics["kept"] == "start":
        notes.append(tag("p", "No checkpoint beat the start on dev: the start was kept."))
    body = join(
        [
            tag("h1", "Alignment of a rewriter"),
            *notes,
            section("curves", "Step by step", "", *shown),
            _fusions(metrics, metric),
        ]
    )
    head = join([tag("meta", charset="utf-8"), tag("title", "Alignment"), tag("style", Html(STYLE))])
    return "<!doctype html>" + tag("html", tag("head", head), tag("body", body), lang="en") + "\n"


def read_figures(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; of several rounds one after the other, their steps counted on."""
    rows: list[dict[str, Any]] = []
    rounds = sorted(folder.glob("round-*/metrics.jsonl"), key=lambda path: int(path.parent.name.rpartition("-")[2]))
    for path in [*rounds, folder / "metrics.jsonl"]:
        if path.is_file():
            before = max((row["step"] for row in rows), default=0)
            own = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            rows += [row | {"step": row["step"] + before} for row in own]
    return rows


def _metric(metrics: Mapping[str, Any]) -> str:
    return str(next(iter(metrics["raw"])))


def _names(names: Sequence[str], metric: str) -> list[str]:
    return [name.replace("{metric}", metric) for name in names]


def _points(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    values = [(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)]
    return [(float(step), float(value)) for step, value in values if math.isfinite(value)]


def _curve(title: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> Html:
    """Lines over steps; nothing where there is nothing to draw."""
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return Html()
    every = [point for points in lines.values() for point in points]
    left, right = min(x for x, _ in every), max(x for x, _ in every)
    low, high = min(y for _, y in every), max(y for _, y in every)

    def at(x: float, y: float) -> str:
        across = (x - left) / (right - left) if right > left else 0.5
        up = (y - low) / (high - low) if high > low else 0.5
        return f"{across * WIDTH:.1f},{(1 - up) * HEIGHT:.1f}"

    drawn, keys = [], []
    for colour, (name, points) in zip(COLOURS, lines.items(), strict=False):
        way = "M" + " L".join(at(x, y) for x, y in points)
        drawn.append(tag("path", d=way, fill="none", stroke=colour, stroke_width=2))
        drawn += [
            tag("circle", cx=at(x, y).split(",")[0], cy=at(x, y).split(",")[1], r=2.5, fill=colour) for x, y in points
        ]
        said = f"{name.removeprefix('eval_')} {points[0][1]:.3g} → {points[-1][1]:.3g}"
        keys.append(tag("span", said, class_="key", style=f"color:{colour}"))
    label = f"{title}, steps {left:g} to {right:g}, from {low:.3g} to {high:.3g}"
    plot = tag("svg", *drawn, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=label)
    return tag("figure", tag("figcaption", title), plot, tag("div", *keys))


def _fusions(metrics: Mapping[str, Any], metric: str) -> Html:
    rows = [
        tag(
            "tr",
            tag("td", foreign(each["fusion"]["method"])),
            tag("td", f"{each['fusion']['raw']:g}"),
            tag("td", "never" if each["fusion"]["sure"] is None else f"{each['fusion']['sure']:.3g}"),
            tag("td", f"{each['score']:.3f}"),
        )
        for each in metrics["fusion"][:6]
    ]
    head = tag("tr", tag("th", "fusion"), tag("th", "raw share"), tag("th", "sure"), tag("th", metric))
    return section("fusion", "Beside the raw query, on dev", "The first one was chosen.", tag("table", head, *rows))
