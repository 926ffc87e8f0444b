"""report.html: one page for people, with its style, script and charts inside; it loads nothing from the network."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from pipelines.report.charts import colour, line_chart
from pipelines.report.data import ReportData
from pipelines.report.markup import Html, foreign, join, section, tabs, tag
from pipelines.report.queries import changes
from pipelines.report.rewrites import rewrites
from pipelines.report.tables import comparisons, curve_numbers, groups, systems
from pipelines.report.tree import trees
from pipelines.report.wording import FAMILIES, best_challenger, find_comparison, headline, headline_metric, metric_label

FOLDER = Path(__file__).parent
SYSTEMS = "In percent. ★ marks the best of a column."
DIFFERENCES = (
    " Below a figure is its difference from the baseline, in points: ▲ better and ▼ worse where chance is an "
    "unlikely reason (p < .05 after Holm's correction), unmarked otherwise."
)
METRICS = "The whisker is the 95 % bootstrap interval."
COMPARISONS = (
    " The dashed line is the baseline. p comes from a paired randomisation test; Holm's correction accounts for the "
    "number of comparisons, and the verdict follows it. ▲ = ▼ count queries that are better, the same, and worse."
)
CURVE = "Recall at k: the share of the needed tools among the first k, in percent."
GROUPS = (
    "The stronger the tint, the higher. ★ marks the best system of a group, ▲ and ▼ a difference from the baseline "
    "with p < .05 after Holm's correction. Small groups say little."
)


def render(data: ReportData) -> str:
    """The page of an evaluation."""
    parts = [
        section("systems", "All systems", SYSTEMS + DIFFERENCES * bool(data.comparisons), systems(data)),
        tag("aside", tag("ul", *(tag("li", foreign(note)) for note in data.notes)), aria_label="Notes")
        if data.notes
        else Html(),
        _metrics(data),
        _curve(data),
        _groups(data),
        rewrites(data),
        changes(data),
        trees(data.trees),
    ]
    return document(data.title, _header(data), tag("main", *parts), _footer(data))


def document(title: str, *content: str) -> str:
    """A page that holds everything it needs."""
    script, style = ((FOLDER / name).read_text(encoding="utf-8") for name in ("script.js", "style.css"))
    digest = b64encode(sha256(script.encode()).digest()).decode()
    # If a query smuggles markup in, the browser still runs this one script only, and fetches nothing.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(style)),
    )
    body = tag("body", *content, tag("script", Html(script)))
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def _header(data: ReportData) -> Html:
    best = best_challenger(data)
    row = find_comparison(data, best.name, headline_metric(data)) if best else None
    parts = [tag("p", foreign(data.title), class_="title"), tag("h1", headline(data))]
    if best and row:
        better, worse, same = ("once" if n == 1 else f"{n:,} times" for n in (row.better, row.worse, row.same))
        text = f"Query by query, {best.name} is better {better}, worse {worse} and no different {same}."
        parts.append(tag("p", text, class_="lede"))
    chips = {
        "queries": f"{data.queries:,}",
        "tools": f"{data.tools:,}",
        "systems": f"{len(data.systems):,}",
        "data set": data.dataset,
        "split": data.split,
        "protocol": data.protocol,
    }
    return tag("header", *parts, tag("dl", *_terms(chips), class_="chips"))


def _terms(terms: dict[str, str]) -> list[Html]:
    return [tag("div", tag("dt", foreign(name)), tag("dd", foreign(value))) for name, value in terms.items()]


def _metrics(data: ReportData) -> Html:
    if not data.metrics or not data.systems:
        return Html()
    panels = [(metric, metric_label(metric), comparisons(data, metric)) for metric in data.metrics]
    chooser = tabs("metric-bars", "Metric", panels, headline_metric(data))
    return section("metrics", "One metric at a time", METRICS + COMPARISONS * bool(data.comparisons), chooser)


def _curve(data: ReportData) -> Html:
    lines = {name: [(k, 100 * value) for k, value in enumerate(row, 1)] for name, row in data.curve.items()}
    colours = {name: colour(data, name) for name in lines}
    chart = line_chart("Recall in percent against k", lines, ceiling=100, colours=colours)
    content = [tag("div", chart, class_="trends tall"), curve_numbers(data)]
    return section("curve", "Recall against k", CURVE, *content) if chart else Html()


def _groups(data: ReportData) -> Html:
    if not data.groups or not data.metrics:
        return Html()
    panels = [(metric, metric_label(metric), groups(data, metric)) for metric in data.metrics]
    chooser = tabs("metric-groups", "Metric", panels, headline_metric(data))
    return section("groups", "By group of queries", GROUPS, chooser)


def _footer(data: ReportData) -> Html:
    families = dict.fromkeys(metric.partition("@")[0] for metric in data.metrics)
    meanings = {
        FAMILIES[family][0] + "@K" * (family != "mrr"): FAMILIES[family][1] for family in families if family in FAMILIES
    }
    prints = {row.name: row.fingerprint for row in data.systems if row.fingerprint}
    columns = {"Metrics": meanings, "How this was made": data.facts, "Index fingerprints": prints}
    return tag(
        "footer",
        join(tag("section", tag("h2", title), tag("dl", *_terms(rows))) for title, rows in columns.items() if rows),
    )
