"""report.html of a round: what was learned from, how the candidate compares, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.renew.verdict import Place, Verdict
from pipelines.report import document
from pipelines.report.markup import Html, foreign, scrolling, section, tag
from pipelines.report.tables import table
from pipelines.report.wording import metric_label, p_clause, percent, points, probability
from pipelines.runs import environment

PLACES = (
    "In percent. The first row decides whether the candidate is better: one question, one p. It must not be worse in "
    "any row: each is tested by itself, not corrected for their number, so that harm is seen early. p comes from a "
    "paired randomisation test."
)
COLLECTED = "Utterances from feedback and from agents' logs, each once. What was left out is counted by the reason."
UNKNOWN = "Called or confirmed, and not in the live catalogue by that name, or by that name several times."


def round_page(folder: Path, verdict: Verdict, collected: Mapping[str, Any], outcome: str) -> str:
    """The page of one round."""
    title = f"{folder.parent.name}, {folder.name}"
    parts = [
        section("places", "Live against candidate", PLACES, _places(verdict)),
        section("reports", "Query by query", "", _links(folder)),
        section("collected", "What was learned from", COLLECTED, _counts(collected)),
        _unknown(collected),
    ]
    facts = environment()
    told = {name: str(facts[name]) for name in ("command", "date", "machine", "python")}
    rows = [tag("div", tag("dt", name), tag("dd", foreign(value))) for name, value in told.items()]
    footer = tag("footer", tag("section", tag("h2", "How this was made"), tag("dl", *rows)))
    return document(title, _header(title, verdict, collected, outcome), tag("main", *parts), footer)


def headline(verdict: Verdict) -> str:
    """The verdict in a sentence."""
    first = verdict.places[0]
    figures = (
        f"{metric_label(first.metric)} {percent(first.live)}\u00a0% live, {percent(first.candidate)}\u00a0% candidate "
        f"({points(first.difference)} points, {p_clause(first.p_value)}, {first.queries:,} queries)"
    )
    if not verdict.better:
        return f"The candidate is not clearly better: {figures}."
    if verdict.worse:
        harm = min(verdict.worse, key=lambda each: each.difference)
        where = f"{metric_label(harm.metric)} on {harm.data}, {harm.group}: {points(harm.difference)} points"
        more = f" and {len(verdict.worse) - 1} more" if len(verdict.worse) > 1 else ""
        return f"The candidate is better over all, and worse somewhere: {figures}; {where}{more}."
    return f"The candidate is better, and nowhere worse: {figures}."


def _header(title: str, verdict: Verdict, collected: Mapping[str, Any], outcome: str) -> Html:
    queries = collected["queries"]
    chips = {
        "outcome": outcome,
        "utterances from users and agents": f"{collected['fresh']:,}",
        "to train on, with those beside them": f"{queries['train']:,}",
        "for dev": f"{queries['dev']:,}",
        "places where it is worse": str(len(verdict.worse)),
    }
    terms = [tag("div", tag("dt", name), tag("dd", foreign(value))) for name, value in chips.items()]
    return tag(
        "header",
        tag("p", foreign(title), class_="title"),
        tag("h1", headline(verdict)),
        tag("dl", *terms, class_="chips"),
    )


def _places(verdict: Verdict) -> Html:
    rows = [_row(each, verdict.level) for each in verdict.places]
    head = ["Queries of", "Group", "Metric", "Queries", "Live", "Candidate", "Difference", "p", "Verdict"]
    return scrolling("All places", table(head, rows, "Live against candidate, place by place", "figures"))


def _row(place: Place, level: float) -> Html:
    sure = place.p_value < level and place.difference != 0
    said = ("▲ better" if place.difference > 0 else "▼ worse") if sure else "no clear difference"
    kind = said.split()[-1] if sure else "no"
    return tag(
        "tr",
        tag("th", foreign(place.data), scope="row"),
        tag("td", foreign(place.group)),
        tag("td", metric_label(place.metric)),
        tag("td", f"{place.queries:,}"),
        tag("td", percent(place.live)),
        tag("td", percent(place.candidate)),
        tag("td", points(place.difference)),
        tag("td", probability(place.p_value)),
        tag("td", said, class_=f"verdict {kind}"),
    )


def _links(folder: Path) -> Html:
    names = sorted(path.parent.name for path in folder.glob("eval-*/report.html"))
    return tag("ul", *(tag("li", tag("a", foreign(name), href=f"{name}/report.html")) for name in names))


def _counts(collected: Mapping[str, Any]) -> Html:
    rows = [("records of " + name, count) for name, count in collected["records"].items()]
    rows += [("left out: " + name, count) for name, count in collected["left_out"].items()]
    return _table(rows, "What was read, and what was left out")


def _unknown(collected: Mapping[str, Any]) -> Html:
    names = list(collected["unknown_tools"].items())
    if not names:
        return Html()
    return section("unknown", "Tools that are not known", UNKNOWN, _table(names, "Unknown tools"))


def _table(rows: Sequence[tuple[str, int]], caption: str) -> Html:
    cells = [tag("tr", tag("th", foreign(name), scope="row"), tag("td", f"{count:,}")) for name, count in rows]
    return scrolling(caption, table(["", "Count"], cells, caption, "figures"))
