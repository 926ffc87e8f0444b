"""Numbers and names for readers, and the headline."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pipelines.report.data import ComparisonRow, ReportData, SystemRow

SIGNIFICANT = 0.05
MINUS = "\u2212"
NUMBERS = "no one two three four five six seven eight nine ten".split()
FAMILIES = {
    "recall": ("Recall", "The share of a query's needed tools among the first K."),
    "ndcg": (
        "NDCG",
        "Like recall, but a tool counts more the higher it ranks; 100 means that all needed tools come first.",
    ),
    "comp": ("COMP", "The share of queries whose needed tools are all among the first K."),
    "mrr": ("MRR", "1 divided by the rank of the first needed tool: 100 at rank 1, 50 at rank 2, 33 at rank 3."),
    "ndcg_toolgen": (
        "NDCG-TG",
        "NDCG as in ToolGen's and ToolWeaver's tables, which ignore needed tools that were not found; "
        "only for comparison with those.",
    ),
}


def metric_label(metric: str) -> str:
    """`ndcg@5` -> NDCG@5."""
    family, at, k = metric.partition("@")
    return (FAMILIES[family][0] if family in FAMILIES else family) + at + k


def percent(value: float | None) -> str:
    """0.6123 -> 61.2; a dash for None."""
    return "–" if value is None or not math.isfinite(value) else f"{value * 100:.1f}".replace("-", MINUS)


def points(difference: float | None) -> str:
    """0.081 -> +8.1, always with its sign, except for what rounds to nothing."""
    if difference is None or not math.isfinite(difference):
        return "–"
    shown = f"{difference * 100:+.1f}"
    return "±0.0" if shown in {"+0.0", "-0.0"} else shown.replace("-", MINUS)


def bounds(interval: tuple[float, float] | None) -> str:
    """A confidence interval in percent."""
    return "" if interval is None else f"{percent(interval[0])} to {percent(interval[1])}"


def probability(p: float) -> str:
    """0.0312 -> .031, 0.00004 -> < .001."""
    if p < 0.001:
        return "< .001"
    return "> .999" if 0.9995 <= p < 1 else f"{p:.3f}".removeprefix("0")


def p_clause(p: float) -> str:
    """`p = .031`, `p < .001`."""
    shown = probability(p)
    return f"p {shown}" if shown[0] in "<>" else f"p = {shown}"


def duration(seconds: float | None) -> str:
    """Seconds per query, in seconds or milliseconds."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def verdict(row: ComparisonRow) -> str:
    """The verdict on a difference, after Holm's correction."""
    if row.p_holm >= SIGNIFICANT or row.difference == 0:
        return "no clear difference"
    return "better" if row.difference > 0 else "worse"


def headline_metric(data: ReportData) -> str:
    """The metric of the headline: recall@5 if it was measured."""
    return "recall@5" if "recall@5" in data.metrics else data.metrics[0] if data.metrics else "recall@5"


def find_comparison(data: ReportData, system: str, metric: str) -> ComparisonRow | None:
    """The comparison of a system with the baseline, if there is one."""
    return find_row(data.comparisons, system, metric)


def find_row(rows: Iterable[ComparisonRow], system: str, metric: str) -> ComparisonRow | None:
    """The comparison of a system in a metric, if there is one."""
    return next((row for row in rows if (row.system, row.metric) == (system, metric)), None)


def best_challenger(data: ReportData) -> SystemRow | None:
    """The best system that is not the baseline."""
    metric = headline_metric(data)
    others = [row for row in data.systems if row.name != data.baseline and metric in row.values]
    return max(others, key=lambda row: row.values[metric], default=None)


def headline(data: ReportData) -> str:
    """The result in a sentence: the leading system, its lead, and whether that may be chance."""
    metric = headline_metric(data)
    base = next((row for row in data.systems if row.name == data.baseline), None)
    best = best_challenger(data)
    if best is None:
        return f"{_achievement(base, metric)}." if base else "No system was evaluated."
    if base is None or metric not in base.values:
        return f"{_achievement(best, metric)}."
    row = find_comparison(data, best.name, metric)
    difference = row.difference if row else best.values[metric] - base.values[metric]
    p = f" ({p_clause(row.p_holm)})" if row else ""
    chance = f", which may be chance{p}" if row and row.p_holm >= SIGNIFICANT else p
    if points(difference) == "±0.0":
        return f"{_achievement(best, metric)}, the same as {base.name}{p}."
    gap = f"{points(abs(difference))[1:]} points"
    if difference > 0:
        return f"{_achievement(best, metric)}, {gap} more than {base.name}{chance}."
    lead = "the best of the others" if len(data.systems) > 2 else "the other system"
    return f"Nothing beats {base.name}: {_achievement(base, metric)}; {best.name}, {lead}, has {gap} less{chance}."


def _achievement(row: SystemRow, metric: str) -> str:
    """`hybrid finds 61.2 % of the needed tools in its first five places`."""
    value = percent(row.values.get(metric))
    family, _, k = metric.partition("@")
    count = int(k) if k.isdecimal() else 0
    word = NUMBERS[count] if count < len(NUMBERS) else str(count)
    places = "in its first place" if count == 1 else f"in its first {word} places"
    if family == "recall" and count:
        return f"{row.name} finds {value}\u00a0% of the needed tools {places}"
    if family == "comp" and count:
        return f"{row.name} finds all needed tools {places} for {value}\u00a0% of the queries"
    return f"{row.name} reaches {value} in {metric_label(metric)}"
