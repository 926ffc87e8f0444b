"""What the rewriters did: figures, how systems join them with the raw query, and samples of what they wrote."""

from __future__ import annotations

from pipelines.report.data import ComparisonRow, FusionRow, ReportData, RewriterRow, RewriteSample, TriedRow
from pipelines.report.markup import Html, foreign, join, scrolling, section, tabs, tag
from pipelines.report.tables import MARKS, row_head, table
from pipelines.report.wording import duration, metric_label, percent, points, probability, verdict

EXPLANATION = (
    "What became of the queries, in percent of them. Parsed are answers that could be read: a rewrite, or the word "
    "that leaves the query alone. Unparseable answers, and queries too long to be asked, count as no rewrite: the raw "
    "query is searched alone. Unfinished answers were ended by the cap on their tokens. Cut are prompts that had no "
    "room for all the tools they should have shown. Lines and tokens are means, of rewritten queries and of answers."
)
FUSION = (
    "How the list of the raw query and those of its rewrite become one; at a raw share of 0 the rewrite is alone. "
    "Chosen on dev is the way that trusts the raw query most of those that are not clearly worse than the best; "
    "a raw query whose first tool scores at least as told under Sure is left alone."
)
GAINS = (
    "Each system that rewrites against the raw query of its own retriever: the difference in points, its 95 % "
    "interval, p of a paired randomisation test, the same after Holm's correction for the number of rows, "
    "and how many queries became better and worse."
)
HEAD = (
    "Rewriter",
    "Parsed",
    "Left alone",
    "Unparseable",
    "Too long",
    "Unfinished",
    "Cut",
    "Lines",
    "Tokens",
    "per query",
)
STATUS = {"none": "left alone", "too-long": "too long, not asked"}


def rewrites(data: ReportData) -> Html:
    """The section, or nothing where no system rewrites."""
    if not data.rewriters:
        return Html()
    figures = table(HEAD, map(_figures, data.rewriters), "Rewriters, in percent of the queries", "figures")
    panels = [(row.name, row.name, _samples(row)) for row in data.rewriters]
    samples = tabs("rewriters", "Rewriter", panels) if len(panels) > 1 else panels[0][2]
    used = join([_fusions(data), _gains(data)])
    return section("rewrites", "Rewrites", EXPLANATION, scrolling("Rewriters", figures), used, samples)


def _figures(row: RewriterRow) -> Html:
    figures = row.figures
    shares = (figures.parsed, figures.none, figures.unparseable, figures.too_long, figures.unfinished, figures.cut)
    made = tag("small", foreign(f"{row.model}, template {row.template}" if row.model else f"template {row.template}"))
    return tag(
        "tr",
        tag("th", tag("span", foreign(row.name), class_="who"), tag("br"), made, scope="row", class_="made"),
        *(tag("td", percent(share)) for share in shares),
        *(tag("td", "–" if mean is None else f"{mean:.1f}") for mean in (figures.lines, figures.tokens)),
        tag("td", duration(figures.seconds_per_query), class_="time"),
    )


def _fusions(data: ReportData) -> Html:
    if not data.fusions:
        return Html()
    rows = [_fusion(data, row) for row in data.fusions]
    head = ("System", "Rewriter", "Fusion", "Raw share", "Sure", "Chosen", "Score on dev", "Raw alone on dev")
    ways = scrolling("Fusions", table(head, rows, "How systems join the raw query with its rewrite", "figures"))
    return join([tag("p", FUSION, class_="explanation"), ways, *(_tried(row) for row in data.fusions if row.tried)])


def _fusion(data: ReportData, row: FusionRow) -> Html:
    alone = next((tried.score for tried in row.tried if tried.raw == 1), None)
    return tag(
        "tr",
        row_head(data, row.system),
        tag("td", tag("span", foreign(row.rewriter), class_="who")),
        tag("td", foreign(row.method)),
        tag("td", f"{row.raw:g}"),
        tag("td", _sure(row)),
        tag("td", f"by {metric_label(row.metric)} of {row.queries:,} dev queries" if row.tried else "by the config"),
        tag("td", percent(row.tried[0].score if row.tried else None)),
        tag("td", percent(alone)),
    )


def _gains(data: ReportData) -> Html:
    if not data.gains:
        return Html()
    metric = metric_label(data.gains[0].metric)
    head = ("System", "Against", metric, "95 % interval", "p", "p, Holm", "Better", "Worse", "Verdict")
    told = table(head, [_gain(data, row) for row in data.gains], "What rewriting adds to each retriever", "figures")
    return join([tag("p", GAINS, class_="explanation"), scrolling("What rewriting adds", told)])


def _gain(data: ReportData, row: ComparisonRow) -> Html:
    said = verdict(row)
    low, high = map(points, row.interval)
    cells = (points(row.difference), f"{low} to {high}", probability(row.p_value), probability(row.p_holm))
    return tag(
        "tr",
        row_head(data, row.system),
        tag("td", foreign(row.baseline)),
        *(tag("td", cell) for cell in (*cells, f"{row.better:,}", f"{row.worse:,}")),
        tag("td", MARKS[said] + said, class_=f"verdict {said.partition(' ')[0]}"),
    )


def _tried(row: FusionRow) -> Html:
    rows = [
        tag("tr", tag("th", foreign(each.method), scope="row"), *(tag("td", cell) for cell in _raw_and_score(each)))
        for each in row.tried
    ]
    caption = f"Tried on dev for {row.system}"
    numbers = table(("Fusion", "Raw share", "Sure", metric_label(row.metric)), rows, caption, "figures")
    told = tag("summary", "Tried on dev for ", foreign(row.system), ": what was taken, and the best others")
    return tag("details", told, scrolling(caption, numbers), class_="numbers")


def _raw_and_score(tried: TriedRow) -> tuple[str, str, str]:
    return f"{tried.raw:g}", _sure(tried), percent(tried.score)


def _sure(row: TriedRow | FusionRow) -> str:
    return "never" if row.skip_rewrite_above is None else f"{row.skip_rewrite_above:.3g}"


def _samples(row: RewriterRow) -> Html:
    caption = f"Samples of {row.name}"
    rows = map(_sample, row.samples)
    return tag("div", scrolling(caption, table(("The user said", "Rewrite"), rows, caption, "samples")), class_="wrote")


def _sample(sample: RewriteSample) -> Html:
    if sample.lines:
        wrote = tag("ul", *(tag("li", foreign(line)) for line in sample.lines))
    elif sample.answer.strip():
        wrote = join([tag("small", f"{sample.status}: "), foreign(sample.answer)])
    else:
        wrote = tag("small", STATUS.get(sample.status, sample.status))
    return tag("tr", tag("th", foreign(sample.utterance), scope="row"), tag("td", wrote))
