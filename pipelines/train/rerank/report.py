"""report.html of a reranker: every set in its first and its new order, the choice, and thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.report import document
from pipelines.report.markup import Html, foreign, join, scrolling, section, tag
from pipelines.report.wording import metric_label, percent

METRICS = ("recall@5", "ndcg@5", "comp@5")
NOTES = {
    "judged": "Data sets that were never trained on and chose nothing, in percent: first order -> new order.",
    "chosen": "Data sets on which depth and weight were chosen; left-out ones with the choice of the others.",
}

FIVE = "Tools that reach a probability, at most five, beside the first five."


def reranker_page(folder: Path, metrics: Mapping[str, Any]) -> str:
    """The page of a finished reranker."""
    title = f"{folder.name}, reranker"
    header = tag("header", tag("p", foreign(title), class_="title"), tag("h1", _headline(metrics)))
    parts = [
        section(f"{name}-{number}", f"{name.capitalize()}: {words}", NOTES[name], _figures(rows))
        for name in ("judged", "chosen")
        for number, (words, rows) in enumerate(metrics[name].items())
        if rows
    ]
    parts += [
        section(f"thresholds-{number}", f"Thresholds: {choice['retriever']}", FIVE, _thresholds(choice))
        for number, choice in enumerate(metrics["choices"])
        if choice.get("thresholds")
    ]
    return document(title, header, tag("main", *parts))


def _headline(metrics: Mapping[str, Any]) -> str:
    first = metrics["choices"][0]
    if not first["weight"]:
        return "The first order is as good: the reranker has no weight"
    return f"Reranks {first['top']} tools with weight {first['weight']:g}, chosen on {metrics['chosen_on']}"


def _figures(rows: Mapping[str, Any]) -> Html:
    cells = [
        [foreign(name), f"{row['queries']:,}"]
        + [
            f"{percent(row['metrics'][metric]['first'])} \u2192 {percent(row['metrics'][metric]['reranked'])}"
            for metric in METRICS
        ]
        + [
            f"{row['metrics']['recall@5']['p_holm']:.3f}",
            "" if row["ms_per_query"] is None else f"{row['ms_per_query']:.1f}",
        ]
        for name, row in rows.items()
    ]
    return _table(["", "queries", *map(metric_label, METRICS), "p (Holm)", "ms per query"], cells)


def _thresholds(choice: Mapping[str, Any]) -> Html:
    rows = [["first 5", *_threshold_cells(choice["first_five"])]]
    rows += [[f"{one['min_probability']:g}", *_threshold_cells(one)] for one in choice["thresholds"]]
    return _table(["min_probability", "precision", "recall", "tools"], rows)


def _threshold_cells(one: Mapping[str, float]) -> list[str]:
    return [percent(one["precision"]), percent(one["recall"]), f"{one['tools']:.2f}"]


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Html:
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in names)))
    body = [tag("tr", tag("th", first), *(tag("td", cell) for cell in rest)) for first, *rest in rows]
    return scrolling("Figures", tag("table", head, tag("tbody", join(body)), class_="figures"))
