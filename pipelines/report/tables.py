"""Tables: systems by metrics, comparisons with the baseline, groups, and the curve in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pipelines.report.charts import bars, colour
from pipelines.report.data import ComparisonRow, GroupRow, ReportData, SystemRow
from pipelines.report.markup import Html, foreign, join, scrolling, tag
from pipelines.report.wording import (
    duration,
    find_comparison,
    find_row,
    metric_label,
    p_clause,
    percent,
    points,
    probability,
    verdict,
)

MARKS = {"better": "▲ ", "worse": "▼ ", "no clear difference": ""}
DENSE = 9
"""Tables with more metrics than this are set closer."""
STAR = join([tag("span", "★", aria_hidden="true"), tag("span", "best: ", class_="unseen")])


def table(head: Iterable[str], rows: Iterable[Html], caption: str, class_: str = "") -> Html:
    """A table with a caption for screen readers."""
    return tag(
        "table",
        tag("caption", caption, class_="unseen"),
        tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head))),
        tag("tbody", *rows),
        class_=class_ or None,
    )


def row_head(data: ReportData, system: str) -> Html:
    """A system's name with its colour, as the head of a row."""
    baseline = tag("small", "baseline") if system == data.baseline else Html()
    key = tag("i", class_=f"key {colour(data, system)}")
    return tag("th", key, tag("span", foreign(system), class_="who"), " ", baseline, scope="row", class_="keyed")


def _best(values: Iterable[float | None]) -> float | None:
    """The best value as shown; None if all are alike, so that none is marked."""
    shown = [round(value, 3) for value in values if value is not None and math.isfinite(value)]
    return max(shown) if len(set(shown)) > 1 else None


def systems(data: ReportData) -> Html:
    """Systems x metrics, the best of each column marked, with differences from the baseline."""
    best = {metric: _best(row.values.get(metric) for row in data.systems) for metric in data.metrics}
    timed = any(row.seconds_per_query is not None for row in data.systems)
    rows = []
    for row in data.systems:
        cells = [_system_cell(data, row, metric, best[metric]) for metric in data.metrics]
        if timed:
            cells.append(tag("td", duration(row.seconds_per_query), class_="time"))
        rows.append(tag("tr", row_head(data, row.name), *cells))
    head = ["System", *map(metric_label, data.metrics), *(["per query"] if timed else [])]
    look = "figures dense" if len(data.metrics) > DENSE else "figures"
    return scrolling("All systems, all metrics", table(head, rows, "Systems by metrics, in percent", look))


def _system_cell(data: ReportData, row: SystemRow, metric: str, best: float | None) -> Html:
    value = row.values.get(metric)
    marked = best is not None and value is not None and round(value, 3) == best
    lines = [tag("span", STAR, percent(value), class_="best") if marked else tag("span", percent(value))]
    if comparison := find_comparison(data, row.name, metric):
        judgement = verdict(comparison)
        text = MARKS[judgement] + points(comparison.difference)
        lines.append(tag("small", text, class_=judgement.partition(" ")[0], title=f"{judgement} than {data.baseline}"))
    return tag("td", *lines)


def comparisons(data: ReportData, metric: str) -> Html:
    """One metric: bars, then each system against the baseline."""
    rows = [_comparison(data, row) for row in data.comparisons if row.metric == metric]
    if not rows:
        return bars(data, metric)
    against = tag("span", "Against ", foreign(data.baseline), class_="who")
    head = [against, "Difference", "95 % interval", "p", "p, Holm", "Queries", "Verdict"]
    caption = f"{metric_label(metric)}: each system against {data.baseline}"
    return join([bars(data, metric), tag("div", table(head, rows, caption, "cards"), class_="compared")])


def _comparison(data: ReportData, row: ComparisonRow) -> Html:
    judgement = verdict(row)
    low, high = map(points, row.interval)
    cells = {
        "difference": tag("b", points(row.difference)),
        "95 % interval": f"{low} to {high}",
        "p": probability(row.p_value),
        "p, Holm": probability(row.p_holm),
        "queries": f"▲ {row.better:,} = {row.same:,} ▼ {row.worse:,}",
    }
    return tag(
        "tr",
        row_head(data, row.system),
        *(tag("td", cell, data_label=label) for label, cell in cells.items()),
        tag("td", MARKS[judgement] + judgement, data_label="verdict", class_=f"verdict {judgement.partition(' ')[0]}"),
    )


def groups(data: ReportData, metric: str) -> Html:
    """Groups x systems in one metric, tinted from the lowest to the highest; all queries at the end."""
    names = [row.name for row in data.systems]
    whole = GroupRow("all queries", data.queries, {row.name: row.values for row in data.systems}, data.comparisons)
    lines = [*data.groups, whole]
    values = [v[metric] for line in lines for v in line.values.values() if math.isfinite(v.get(metric, math.nan))]
    low, high = min(values, default=0.0), max(values, default=1.0)
    rows = []
    for line in lines:
        means = [line.values.get(system, {}).get(metric) for system in names]
        best = _best(means)
        head = tag("th", tag("span", foreign(line.name), class_="who"), scope="row")
        cells = [
            _heat(value, low, high, best, find_row(line.comparisons, system, metric))
            for system, value in zip(names, means, strict=True)
        ]
        rows.append(tag("tr", head, tag("td", f"{line.queries:,}"), *cells))
    caption = f"{metric_label(metric)} by group of queries, in percent"
    return scrolling(caption, table(["Group", "Queries", *map(foreign, names)], rows, caption, "figures heat"))


def _heat(value: float | None, low: float, high: float, best: float | None, comparison: ComparisonRow | None) -> Html:
    if value is None or not math.isfinite(value):
        return tag("td", "–")
    heat = (value - low) / (high - low) if high > low else 0.0
    star, class_ = ("★ ", "best") if best is not None and round(value, 3) == best else ("", None)
    lines = [star, percent(value)]
    if comparison:
        judgement = verdict(comparison)
        text = f"{MARKS[judgement]}{p_clause(comparison.p_holm)}"
        lines.append(tag("small", text, class_=judgement.partition(" ")[0], title=judgement))
    return tag("td", *lines, style=f"--heat:{heat:.2f}", class_=class_)


def curve_numbers(data: ReportData) -> Html:
    """The recall curve as a table."""
    longest = max(map(len, data.curve.values()), default=0)
    rows = [
        tag("tr", row_head(data, name), *(tag("td", percent(value)) for value in values))
        for name, values in data.curve.items()
    ]
    head = ["k", *map(str, range(1, longest + 1))]
    numbers = scrolling("Recall at k", table(head, rows, "Recall in percent, by number of tools", "figures"))
    return tag("details", tag("summary", "The same in numbers"), numbers, class_="numbers")
