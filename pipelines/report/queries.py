"""The queries that a system gained and lost, with what stood in the first five places before and after."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.report.data import Change, Changes, RankedTool, ReportData
from pipelines.report.markup import Html, foreign, join, section, tabs, tag
from pipelines.report.wording import best_challenger, metric_label, points

EXPLANATION = (
    "Open a query to see the first five places before (the baseline) and after. ● and ✓ mark tools that the query "
    "needs, ○ others."
)


def changes(data: ReportData) -> Html:
    """The section, or nothing where there was nothing to compare."""
    if not data.changes:
        return Html()
    find = tag(
        "div",
        tag("label", "Filter ", tag("input", type="search", placeholder="words of a query or a tool")),
        tag("button", "Open all", type="button", aria_pressed="false"),
        tag("output"),
        class_="find",
        hidden=True,
    )
    panels = [(each.system, each.system, _panel(each)) for each in data.changes]
    best = best_challenger(data)
    content = tabs("changes", "System", panels, best.name if best else None) if len(panels) > 1 else panels[0][2]
    return section("queries", "Queries gained and lost", EXPLANATION, find, content)


def _panel(chosen: Changes) -> Html:
    title = join([foreign(chosen.system), " against ", foreign(chosen.baseline)])
    sides = [
        _side("Gained", "gained", chosen.gained, chosen.gained_count, chosen.metric),
        _side("Lost", "lost", chosen.lost, chosen.lost_count, chosen.metric),
    ]
    return join([tag("p", title, class_="pairing"), tag("div", *sides, class_="sides")])


def _side(title: str, kind: str, shown: Sequence[Change], count: int, metric: str) -> Html:
    mark = "▲" if kind == "gained" else "▼"
    part = f", {len(shown):,} shown" if len(shown) < count else ""
    total = f"{count:,} {'query' if count == 1 else 'queries'} by {metric_label(metric)}{part}"
    head = tag("h3", tag("span", f"{mark} {title}", class_="title"), " ", tag("small", total))
    nothing = tag("p", "None.", class_="explanation")
    return tag("div", head, *([_change(each) for each in shown] or [nothing]), class_=f"side {kind}")


def _change(change: Change) -> Html:
    before, after = {tool.id for tool in change.before}, {tool.id for tool in change.after}
    head = tag(
        "summary",
        tag("span", points(change.difference), class_="gain"),
        tag("span", foreign(change.query), class_="query"),
        _dots(change),
    )
    lists = [
        _ranking("before", change.before, after, "gone"),
        _ranking("after", change.after, before, "new"),
    ]
    missing = Html()
    if change.missing:
        missing = tag("p", "✓ needed, in neither: ", join(map(foreign, change.missing), ", "), class_="missing")
    return tag("details", head, tag("div", *lists, class_="pair"), missing, class_="change")


def _dots(change: Change) -> Html:
    strips = ["".join("●" if tool.gold else "○" for tool in side) or "–" for side in (change.before, change.after)]
    found = [sum(tool.gold for tool in side) for side in (change.before, change.after)]
    said = f"needed tools found: {found[0]} before, {found[1]} after"
    return tag("span", " → ".join(strips), class_="dots", role="img", aria_label=said)


def _ranking(title: str, tools: Sequence[RankedTool], other: set[str], moved: str) -> Html:
    items = [_tool(tool, "" if tool.id in other else moved) for tool in tools]
    return tag("div", tag("h4", title), tag("ol", *items) if items else tag("p", "nothing was found"))


def _tool(tool: RankedTool, moved: str) -> Html:
    name = foreign(tool.name)
    parts: list[str] = [tag("b", "✓ ", name)] if tool.gold else [name]
    if tool.id != tool.name:
        parts += [" ", tag("code", foreign(tool.id))]
    if moved and tool.gold:
        parts += [" ", tag("em", moved)]
    return tag("li", *parts)
