"""report.html of a general encoder: every judged set under every blend, and the choice of the blend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.report import document
from pipelines.report.markup import Html, foreign, join, scrolling, section, tag
from pipelines.report.wording import metric_label, percent

METRIC = "recall@5"
JUDGED = (
    "Data sets that were never trained on, in percent. `0` is the base model, `adapter` the encoder that was written."
)
CHOICE = "Mean over the data sets that were left out of training in turn, and the set that lost most."


def encoder_page(folder: Path, metrics: Mapping[str, Any]) -> str:
    """The page of a finished encoder."""
    title = f"{folder.name}, general encoder"
    headline = f"Blend {metrics['blend']:g}, {metrics['bytes'] / 1e6:.1f}\u00a0MB"
    header = tag("header", tag("p", foreign(title), class_="title"), tag("h1", headline))
    systems = next((list(own["scores"]["adapter"]) for own in metrics["sets"].values()), [])
    tables = [
        section(system.replace(" ", "-"), system.capitalize(), JUDGED, _judged(metrics["sets"], system))
        for system in systems
    ]
    return document(title, header, tag("main", _choice(metrics["blends"]), *tables))


def _judged(sets: Mapping[str, Any], system: str) -> Html:
    forms = list(next(iter(sets.values()))["scores"])
    rows = [
        [foreign(name), f"{own['tools']:,}", f"{own['queries']:,}"]
        + [percent(own["scores"][form][system][METRIC]) for form in forms]
        for name, own in sets.items()
    ]
    return _table([f"{metric_label(METRIC)}", "tools", "queries", *forms], rows)


def _choice(blends: Sequence[Mapping[str, Any]]) -> Html:
    if not blends:
        return Html()
    rows = [
        [f"{row['blend']:g}", percent(row["mean"]), f"{100 * row['worst']:+.1f}", foreign(row["worst_set"])]
        for row in blends
    ]
    table = _table(["Blend", metric_label(METRIC), "Largest loss", "of"], rows)
    return section("choice", "Choice of the blend", CHOICE, table)


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Html:
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in names)))
    body = [tag("tr", tag("th", first), *(tag("td", cell) for cell in rest)) for first, *rest in rows]
    return scrolling("Figures", tag("table", head, tag("tbody", join(body)), class_="figures"))
