"""report.html of a round: training data, comparison and outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.renew.verdict import MetricComparison, Verdict
from pipelines.report import document
from pipelines.report.markup import Html, foreign, scrolling, section, tag
from pipelines.report.tables import table
from pipelines.report.wording import metric_label, p_clause, percent, points, probability
from pipelines.runs import environment

COMPARISONS = (
    "In percent. The first row decides whether the candidate is better. It must not be worse in any row: each is "
    "tested by itself, not corrected for their number, so that harm is noticed early. p comes from a paired "
    "randomisation test."
)
COLLECTED = "Utterances from feedback and from agents' logs, each once. Those left out are counted by reason."
UNKNOWN = "Called or confirmed, but no tool of the live catalogue has that name, or several have it."


def round_page(folder: Path, verdict: Verdict, collected: Mapping[str, Any], outcome: str) -> str:
    """The page of one round."""
    title = f"{folder.parent.name}, {folder.name}"
    parts = [
        section("comparisons", "Live against candidate", COMPARISONS, _comparisons(verdict)),
        section("reports", "Query by query", "", _links(folder)),
        section("collected", "Training data", COLLECTED, _counts(collected)),
        _unknown(collected),
    ]
    facts = environment()
    shown = {name: str(facts[name]) for name in ("command", "date", "machine", "python")}
    rows = [tag("div", tag("dt", name), tag("dd", foreign(value))) for name, value in shown.items()]
    footer = tag("footer", tag("section", tag("h2", "How this was made"), tag("dl", *rows)))
    return document(title, _header(title, verdict, collected, outcome), tag("main", *parts), footer)


def headline(verdict: Verdict) -> str:
    """The verdict in a sentence."""
    first = verdict.comparisons[0]
    figures = (
        f"{metric_label(first.metric)} {percent(first.live)}\u00a0% live, {percent(first.candidate)}\u00a0% candidate "
        f"({points(first.difference)} points, {p_clause(first.p_value)}, {first.queries:,} queries)"
    )
    if not verdict.better:
        return f"The candidate is not clearly better: {figures}."
    if verdict.worse:
        harm = min(verdict.worse, key=lambda row: row.difference)
        where = f"{metric_label(harm.metric)} on {harm.data}, {harm.group}: {points(harm.difference)} points"
        more = f" and {len(verdict.worse) - 1} more" if len(verdict.worse) > 1 else ""
        return f"The candidate is better overall, but worse somewhere: {figures}; {where}{more}."
    return f"The candidate is better, and nowhere worse: {figures}."


def _header(title: str, verdict: Verdict, collected: Mapping[str, Any], outcome: str) -> Html:
    queries = collected["queries"]
    chips = {
        "outcome": outcome,
        "utterances from users and agents": f"{collected['fresh']:,}",
        "to train on, with data sets": f"{queries['train']:,}",
        "for dev": f"{queries['dev']:,}",
        "comparisons in which it is worse": str(len(verdict.worse)),
    }
    terms = [tag("div", tag("dt", name), tag("dd", foreign(value))) for name, value in chips.items()]
    return tag(
        "header",
        tag("p", foreign(title), class_="title"),
        tag("h1", headline(verdict)),
        tag("dl", *terms, class_="chips"),
    )


def _comparisons(verdict: Verdict) -> Html:
    rows = [_row(comparison, verdict.level) for comparison in verdict.comparisons]
    head = ["Queries of", "Group", "Metric", "Queries", "Live", "Candidate", "Difference", "p", "Verdict"]
    return scrolling("All comparisons", table(head, rows, "Live against candidate, row by row", "figures"))


def _row(row: MetricComparison, level: float) -> Html:
    sure = row.p_value < level and row.difference != 0
    label = ("▲ better" if row.difference > 0 else "▼ worse") if sure else "no clear difference"
    kind = label.split()[-1] if sure else "no"
    return tag(
        "tr",
        tag("th", foreign(row.data), scope="row"),
        tag("td", foreign(row.group)),
        tag("td", metric_label(row.metric)),
        tag("td", f"{row.queries:,}"),
        tag("td", percent(row.live)),
        tag("td", percent(row.candidate)),
        tag("td", points(row.difference)),
        tag("td", probability(row.p_value)),
        tag("td", label, class_=f"verdict {kind}"),
    )


def _links(folder: Path) -> Html:
    names = sorted(path.parent.name for path in folder.glob("eval-*/report.html"))
    return tag("ul", *(tag("li", tag("a", foreign(name), href=f"{name}/report.html")) for name in names))


def _counts(collected: Mapping[str, Any]) -> Html:
    rows = [("records of " + name, count) for name, count in collected["records"].items()]
    rows += [("left out: " + name, count) for name, count in collected["left_out"].items()]
    return _table(rows, "Records read and left out")


def _unknown(collected: Mapping[str, Any]) -> Html:
    names = list(collected["unknown_tools"].items())
    if not names:
        return Html()
    return section("unknown", "Unknown tools", UNKNOWN, _table(names, "Unknown tools"))


def _table(rows: Sequence[tuple[str, int]], caption: str) -> Html:
    cells = [tag("tr", tag("th", foreign(name), scope="row"), tag("td", f"{count:,}")) for name, count in rows]
    return scrolling(caption, table(["", "Count"], cells, caption, "figures"))
