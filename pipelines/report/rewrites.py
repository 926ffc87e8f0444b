"""The section about rewriters: statistics, fusions, gains per retriever, and samples."""

from __future__ import annotations

from pipelines.report.data import ComparisonRow, FusionRow, ReportData, RewriterRow, RewriteSample, TriedRow
from pipelines.report.markup import Html, foreign, join, scrolling, section, tabs, tag
from pipelines.report.tables import MARKS, row_head, table
from pipelines.report.wording import duration, metric_label, percent, points, probability, verdict

EXPLANATION = (
    "Shares are in percent of the queries. Parsed answers hold a rewrite, or the word that leaves the query alone. "
    "Without a readable answer the raw query is searched alone: unparseable answers, and queries too long for the "
    "model. Unfinished answers reached the limit on tokens. Cut prompts had no room for all candidate tools. Lines "
    "and tokens are means of rewritten queries and of answers."
)
FUSION = (
    "The fusion of the raw query's ranking with those of its rewrite; at a raw share of 0 the rewrite is alone. On dev "
    "the largest raw share is chosen that is not clearly worse than the best fusion. A raw query whose first tool "
    "scores at least the value under Skip above is not rewritten."
)
GAINS = (
    "Each rewriting system against the raw query of its own retriever: difference in points, 95 % interval, p of a "
    "paired randomisation test, p after Holm's correction for the number of rows, and queries better and worse."
)
HEAD = ("Rewriter", "Parsed", "Left alone", "Unparseable", "Too long", "Unfinished", "Cut", "Lines", "Tokens")
STATUS = {"none": "left alone", "too-long": "too long, not asked"}


def rewrites(data: ReportData) -> Html:
    """The section; empty if no system rewrites."""
    if not data.rewriters:
        return Html()
    figures = table((*HEAD, "per query"), map(_figures, data.rewriters), "Rewriters, in percent of queries", "figures")
    panels = [(row.name, row.name, _samples(row)) for row in data.rewriters]
    samples = tabs("rewriters", "Rewriter", panels) if len(panels) > 1 else panels[0][2]
    used = join([_fusions(data), _gains(data)])
    return section("rewrites", "Rewrites", EXPLANATION, scrolling("Rewriters", figures), used, samples)


def _cells(*cells: str) -> list[Html]:
    return [tag("td", cell) for cell in cells]


def _figures(row: RewriterRow) -> Html:
    figures = row.figures
    shares = (figures.parsed, figures.none, figures.unparseable, figures.too_long, figures.unfinished, figures.cut)
    means = ("–" if mean is None else f"{mean:.1f}" for mean in (figures.lines, figures.tokens))
    made = tag("small", foreign(f"{row.model}, template {row.template}" if row.model else f"template {row.template}"))
    return tag(
        "tr",
        tag("th", tag("span", foreign(row.name), class_="who"), tag("br"), made, scope="row", class_="made"),
        *_cells(*map(percent, shares), *means),
        tag("td", duration(figures.seconds_per_query), class_="time"),
    )


def _fusions(data: ReportData) -> Html:
    if not data.fusions:
        return Html()
    rows = [_fusion(data, row) for row in data.fusions]
    head = ("System", "Rewriter", "Fusion", "Raw share", "Skip above", "Chosen", "Score on dev", "Raw alone on dev")
    fusions = scrolling("Fusions", table(head, rows, "Fusions of raw query and rewrite", "figures"))
    return join([tag("p", FUSION, class_="explanation"), fusions, *(_tried(row) for row in data.fusions if row.tried)])


def _fusion(data: ReportData, row: FusionRow) -> Html:
    alone = next((tried.score for tried in row.tried if tried.raw == 1), None)
    return tag(
        "tr",
        row_head(data, row.system),
        tag("td", tag("span", foreign(row.rewriter), class_="who")),
        *_cells(
            foreign(row.method),
            f"{row.raw:g}",
            _gate(row),
            f"by {metric_label(row.metric)} of {row.queries:,} dev queries" if row.tried else "by the config",
            percent(row.tried[0].score if row.tried else None),
            percent(alone),
        ),
    )


def _gains(data: ReportData) -> Html:
    if not data.gains:
        return Html()
    metric = metric_label(data.gains[0].metric)
    head = ("System", "Against", metric, "95 % interval", "p", "p, Holm", "Better", "Worse", "Verdict")
    gains = table(head, [_gain(data, row) for row in data.gains], "Gain by rewriting, per retriever", "figures")
    return join([tag("p", GAINS, class_="explanation"), scrolling("Gain by rewriting", gains)])


def _gain(data: ReportData, row: ComparisonRow) -> Html:
    judgement = verdict(row)
    low, high = map(points, row.interval)
    cells = _cells(
        foreign(row.baseline),
        points(row.difference),
        f"{low} to {high}",
        probability(row.p_value),
        probability(row.p_holm),
        f"{row.better:,}",
        f"{row.worse:,}",
    )
    last = tag("td", MARKS[judgement] + judgement, class_=f"verdict {judgement.partition(' ')[0]}")
    return tag("tr", row_head(data, row.system), *cells, last)


def _tried(row: FusionRow) -> Html:
    rows = [
        tag("tr", tag("th", foreign(one.method), scope="row"), *_cells(f"{one.raw:g}", _gate(one), percent(one.score)))
        for one in row.tried
    ]
    caption = f"Tried on dev for {row.system}"
    numbers = table(("Fusion", "Raw share", "Skip above", metric_label(row.metric)), rows, caption, "figures")
    summary = tag("summary", "Tried on dev for ", foreign(row.system), ": the chosen fusion and the best others")
    return tag("details", summary, scrolling(caption, numbers), class_="numbers")


def _gate(row: TriedRow | FusionRow) -> str:
    return "never" if row.skip_rewrite_above is None else f"{row.skip_rewrite_above:.3g}"


def _samples(row: RewriterRow) -> Html:
    caption = f"Samples of {row.name}"
    samples = table(("Query", "Rewrite"), map(_sample, row.samples), caption, "samples")
    return tag("div", scrolling(caption, samples), class_="wrote")


def _sample(sample: RewriteSample) -> Html:
    if sample.lines:
        rewrite = tag("ul", *(tag("li", foreign(line)) for line in sample.lines))
    elif sample.answer.strip():
        rewrite = join([tag("small", f"{sample.status}: "), foreign(sample.answer)])
    else:
        rewrite = tag("small", STATUS.get(sample.status, sample.status))
    return tag("tr", tag("th", foreign(sample.utterance), scope="row"), tag("td", rewrite))
