"""report.html of a training run: curves of dev, reward, KL, length and loss by step, and the fusions tried on dev."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.report import document
from pipelines.report.charts import Points, line_chart
from pipelines.report.markup import Html, foreign, join, scrolling, section, tag
from pipelines.report.wording import metric_label, percent

CURVES = {
    "Dev, with retrieval, in percent": {
        "eval_{metric}": "{label}",
        "eval_seen_{metric}": "{label}, tools seen in training",
        "eval_unseen_{metric}": "{label}, tools not seen",
    },
    "Reward of the answers": {
        "reward": "reward",
        "rewards/chosen": "chosen",
        "rewards/rejected": "rejected",
        "rewards/margins": "margin",
    },
    "Distance from the reference, nats per answer": {"kl": "KL"},
    "Answers that can be parsed, and that differ, in percent": {"eval_parsed": "parsed", "eval_distinct": "differ"},
    "Tokens per answer": {"eval_tokens": "dev", "completions/mean_length": "training", "length": "training"},
    "Loss": {"loss": "training", "eval_loss": "dev"},
}
STEPS = "Dots are measurements. The dashed line, if there is one, is the raw query alone."
FUSION = (
    "Fusions of the raw query's ranking with those of its rewrite. The first one was chosen: of those that are not "
    "clearly worse than the best, the one with the largest raw share."
)


def training_page(folder: Path, algo: str, metrics: Mapping[str, Any]) -> str:
    """The page of a run. `algo`: the algorithm, or fine-tuning."""
    metric = next(iter(metrics["raw"]))
    title = f"{folder.name}, {algo}"
    curves = section(
        "curves", "Step by step", STEPS, tag("div", *_curves(read_figures(folder), metrics), class_="trends")
    )
    return document(
        title, _header(title, metric, metrics), tag("main", _notes(metrics), curves, _fusions(metrics, metric))
    )


def read_figures(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; rounds follow each other, with continued step numbers."""
    rows: list[dict[str, Any]] = []
    rounds = sorted(folder.glob("round-*/metrics.jsonl"), key=lambda path: int(path.parent.name.rpartition("-")[2]))
    for path in [*rounds, folder / "metrics.jsonl"]:
        if path.is_file():
            before = max((row["step"] for row in rows), default=0)
            own = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            rows += [row | {"step": row["step"] + before} for row in own]
    return rows


def _header(title: str, metric: str, metrics: Mapping[str, Any]) -> Html:
    label, best, raw = metric_label(metric), percent(metrics["best"]), percent(metrics["raw"][metric])
    start = metrics.get("start", {}).get(f"eval_{metric}")
    before = f", {percent(start)}\u00a0% at the start" if start is not None else ""
    headline = f"{label} on dev is {best}\u00a0%{before}; the raw query alone has {raw}\u00a0%."
    chips = {"best step": str(metrics["step"]), "metric": label, "evaluations on dev": str(len(metrics["history"]))}
    terms = [tag("div", tag("dt", name), tag("dd", foreign(value))) for name, value in chips.items()]
    chips_list = tag("dl", *terms, class_="chips")
    return tag("header", tag("p", foreign(title), class_="title"), tag("h1", headline), chips_list)


def _notes(metrics: Mapping[str, Any]) -> Html:
    notes = []
    if metrics.get("collapse"):
        notes.append(f"Stopped early: {metrics['collapse']}.")
    if metrics.get("kept") == "start":
        notes.append("No checkpoint beat the start on dev: the start was kept.")
    if metrics["fusion"] and metrics["fusion"][0]["fusion"]["raw"] >= 1:
        notes.append("On dev the rewriter adds nothing clear to the raw query: its card advises not to use it.")
    if not notes:
        return Html()
    return tag("aside", tag("ul", *(tag("li", foreign(note)) for note in notes)), aria_label="Notes")


def _curves(rows: list[dict[str, Any]], metrics: Mapping[str, Any]) -> list[Html]:
    metric = next(iter(metrics["raw"]))
    drawn = []
    for title, names in CURVES.items():
        lines: dict[str, Points] = {}
        for name, line in names.items():
            points = _points(rows, name.replace("{metric}", metric), 100.0 if title.endswith("percent") else 1.0)
            if points:
                lines.setdefault(line.replace("{label}", metric_label(metric)), points)
        reference = 100 * metrics["raw"][metric] if title.startswith("Dev") else None
        drawn.append(line_chart(title, lines, reference, 100.0 if title.endswith("percent") else None))
    return [drawing for drawing in drawn if drawing]


def _points(rows: list[dict[str, Any]], name: str, times: float) -> Points:
    return [(float(row["step"]), times * row[name]) for row in rows if isinstance(row.get(name), int | float)]


def _fusions(metrics: Mapping[str, Any], metric: str) -> Html:
    if not metrics["fusion"]:
        return Html()
    rows = [
        tag(
            "tr",
            tag("th", foreign(row["fusion"]["method"])),
            tag("td", f"{row['fusion']['raw']:g}"),
            tag("td", _threshold(row["fusion"]["skip_rewrite_above"])),
            tag("td", percent(row["score"])),
        )
        for row in metrics["fusion"][:6]
    ]
    names = ("Fusion", "Raw share", "Skip rewrite above", f"{metric_label(metric)} on dev")
    heads = [tag("th", name, scope="col") for name in names]
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", join(rows)), class_="figures")
    return section("fusion", "Fusion with the raw query, on dev", FUSION, scrolling("Fusions", table))


def _threshold(score: float | None) -> str:
    return "never" if score is None else f"{score:.3g}"
