"""report.html: one page, for people. It holds its style, its script and its drawings, and asks no network."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from pipelines.report.curve import recall_curve
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
    " Below a figure stands its difference from the baseline, in points: ▲ better and ▼ worse where chance is an "
    "unlikely reason (p < .05 after Holm's correction), unmarked otherwise."
)
METRICS = "The whisker is the 95 % bootstrap interval."
COMPARISONS = (
    " The dashed line is the baseline. p comes from a paired randomisation test; Holm's correction makes up for the "
    "number of comparisons, and the verdict follows it."
)
CURVE = "The share of the needed tools that is found, in percent, when the first k places are looked at."
GROUPS = (
    "The stronger the tint, the higher. ★ marks the best system of a group. Small groups say little: mind the counts."
)


def render(data: ReportData) -> str:
    """The page of an evaluation."""
    parts = [
        section("systems", "All systems", SYSTEMS + DIFFERENCES * bool(data.comparisons), systems(data)),
        _notes(data),
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
    # Whatever a query might smuggle in, the browser runs this one script and fetches nothing.
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
    told = [
        tag("p", foreign(data.title), class_="title"),
        tag("h1", headline(data)),
    ]
    if best and row:
        pair = f"Query by query, {best.name} is better {_times(row.better)}, worse {_times(row.worse)} and no "
        told.append(tag("p", pair + f"different {_times(row.same)}.", class_="lede"))
    chips = {
        _plural(data.queries, "query", "queries"): f"{data.queries:,}",
        _plural(data.tools, "tool", "tools"): f"{data.tools:,}",
        _plural(len(data.systems), "system", "systems"): f"{len(data.systems):,}",
        "data set": data.dataset,
        "split": data.split,
        "protocol": data.protocol,
    }
    terms = [tag("div", tag("dt", name), tag("dd", foreign(value))) for name, value in chips.items()]
    return tag("header", *told, tag("dl", *terms, class_="chips"))


def _plural(count: int, one: str, many: str) -> str:
    return one if count == 1 else many


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _notes(data: ReportData) -> Html:
    if not data.notes:
        return Html()
    return tag("aside", tag("ul", *(tag("li", foreign(note)) for note in data.notes)), aria_label="Notes")


def _metrics(data: ReportData) -> Html:
    panels = [(metric, metric_label(metric), comparisons(data, metric)) for metric in data.metrics]
    if not panels or not data.systems:
        return Html()
    chooser = tabs("metric-bars", "Metric", panels, headline_metric(data))
    return section("metrics", "One metric at a time", METRICS + COMPARISONS * bool(data.comparisons), chooser)


def _curve(data: ReportData) -> Html:
    drawing = recall_curve(data)
    return section("curve", "Recall against k", CURVE, drawing, curve_numbers(data)) if drawing else Html()


def _groups(data: ReportData) -> Html:
    if not data.groups or not data.metrics:
        return Html()
    panels = [(metric, metric_label(metric), groups(data, metric)) for metric in data.metrics]
    return section(
        "groups", "By group of queries", GROUPS, tabs("metric-groups", "Metric", panels, headline_metric(data))
    )


def _footer(data: ReportData) -> Html:
    families = dict.fromkeys(metric.partition("@")[0] for metric in data.metrics)
    known = [(family, *FAMILIES[family]) for family in families if family in FAMILIES]
    meanings = [
        tag("div", tag("dt", name if family == "mrr" else f"{name}@K"), tag("dd", meaning[:1].upper() + meaning[1:]))
        for family, name, meaning in known
    ]
    facts = [tag("div", tag("dt", foreign(name)), tag("dd", foreign(fact))) for name, fact in data.facts.items()]
    prints = [
        tag("div", tag("dt", foreign(row.name)), tag("dd", tag("code", foreign(row.fingerprint))))
        for row in data.systems
        if row.fingerprint
    ]
    columns = [("What the metrics mean", meanings), ("How this was made", facts), ("Index fingerprints", prints)]
    return tag("footer", join(tag("section", tag("h2", title), tag("dl", *rows)) for title, rows in columns if rows))
