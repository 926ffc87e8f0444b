"""The section of queries that a system gained and lost, with the first five tools before and after."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.report.data import QueryChange, RankedTool, ReportData, SystemChanges
from pipelines.report.markup import Html, foreign, join, section, tabs, tag
from pipelines.report.wording import best_challenger, metric_label, points

EXPLANATION = (
    "Open a query to see the first five tools before (the baseline) and after. ● and ✓ mark tools that the query "
    "needs, ○ others."
)


def changes(data: ReportData) -> Html:
    """The section; empty without a comparison."""
    if not data.changes:
        return Html()
    search = tag(
        "div",
        tag("label", "Filter ", tag("input", type="search", placeholder="words of a query or a tool")),
        tag("button", "Open all", type="button", aria_pressed="false"),
        tag("output"),
        class_="find",
        hidden=True,
    )
    panels = [(change.system, change.system, _panel(change)) for change in data.changes]
    best = best_challenger(data)
    content = tabs("changes", "System", panels, best.name if best else None) if len(panels) > 1 else panels[0][2]
    return section("queries", "Queries gained and lost", EXPLANATION, search, content)


def _panel(changes: SystemChanges) -> Html:
    title = join([foreign(changes.system), " against ", foreign(changes.baseline)])
    sides = [
        _side("▲ Gained", "gained", changes.gained, changes.gained_count, changes.metric),
        _side("▼ Lost", "lost", changes.lost, changes.lost_count, changes.metric),
    ]
    return join([tag("p", title, class_="pairing"), tag("div", *sides, class_="sides")])


def _side(title: str, kind: str, shown: Sequence[QueryChange], count: int, metric: str) -> Html:
    part = f", {len(shown):,} shown" if len(shown) < count else ""
    total = f"{count:,} {'query' if count == 1 else 'queries'} by {metric_label(metric)}{part}"
    head = tag("h3", tag("span", title, class_="title"), " ", tag("small", total))
    rows = [_change(change) for change in shown] or [tag("p", "None.", class_="explanation")]
    return tag("div", head, *rows, class_=f"side {kind}")


def _change(change: QueryChange) -> Html:
    sides = (change.before, change.after)
    strips = ["".join("●" if tool.gold else "○" for tool in side) or "–" for side in sides]
    before, after = (sum(tool.gold for tool in side) for side in sides)
    label = f"needed tools in the first five: {before} before, {after} after"
    head = tag(
        "summary",
        tag("span", points(change.difference), class_="gain"),
        tag("span", foreign(change.query), class_="query"),
        tag("span", " → ".join(strips), class_="dots", role="img", aria_label=label),
    )
    lists = [
        _ranking("before", change.before, {tool.id for tool in change.after}, "gone"),
        _ranking("after", change.after, {tool.id for tool in change.before}, "new"),
    ]
    missing = Html()
    if change.missing:
        missing = tag("p", "✓ needed, in neither: ", join(map(foreign, change.missing), ", "), class_="missing")
    return tag("details", head, tag("div", *lists, class_="pair"), missing, class_="change")


def _ranking(title: str, tools: Sequence[RankedTool], other: set[str], moved: str) -> Html:
    items = []
    for tool in tools:
        name = foreign(tool.name)
        parts: list[str] = [tag("b", "✓ ", name)] if tool.gold else [name]
        if tool.id != tool.name:
            parts += [" ", tag("code", foreign(tool.id))]
        if tool.gold and tool.id not in other:
            parts += [" ", tag("em", moved)]
        items.append(tag("li", *parts))
    return tag("div", tag("h4", title), tag("ol", *items) if items else tag("p", "no tools"))
