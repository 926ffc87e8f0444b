"""The results table as a page of Markdown, made of files of figures and of nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipelines.evaluate.published.figures import HEAD, RETRIEVERS, REWRITERS, FigureRow, Figures
from pipelines.evaluate.published.wording import Footnotes, amount, figure, probability, speed

NOT_RUN = "not run"
SECTIONS = {
    ("toollens", "official"): "ToolLens, official test",
    ("toollens", "unseen-tools"): "ToolLens, unseen tools",
    ("toolbench", "official"): "ToolBench, official test, one corpus of 16,313 tools",
    ("toolbench", "unseen-tools"): "ToolBench, unseen tools",
    ("toole", "official"): "ToolE, its own test",
    ("toole", "unseen-tools"): "ToolE, unseen tools",
    ("bfcl", "official"): "BFCL, its own test",
    ("bfcl", "unseen-tools"): "BFCL, unseen tools",
    ("mcpzero", "official"): "MCP-Zero, its own test",
    ("mcpzero", "unseen-tools"): "MCP-Zero, unseen tools",
}
"""Data sets that are always there, run or not; others stand below them when somebody has figures."""
METRICS = {"recall@3": "R@3", "recall@5": "R@5", "recall@10": "R@10", "ndcg@5": "N@5", "comp@5": "C@5"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A row, and the file it stands in."""

    file: str
    figures: Figures
    row: FigureRow

    @property
    def measured(self) -> bool:
        """Whether it is ours."""
        return self.figures.source == "measured"


def entries(found: Mapping[str, Figures], split: str = "test") -> list[Entry]:
    """All rows of a split, in the table's order: retrievers, then rewriters, what is ours first."""
    rows = [
        Entry(name, each, row)
        for name, each in found.items()
        if each.split == split or not each.split
        for row in each.rows
    ]
    known, words = list(RETRIEVERS), list(REWRITERS)

    def order(entry: Entry) -> tuple[bool, int, int, bool]:
        place = known.index(entry.row.retriever) if entry.row.retriever in known else len(known)
        return not entry.measured, place, words.index(entry.row.rewriter), entry.row.variant

    return sorted(rows, key=order)


def page(found: Mapping[str, Figures], command: str, folder: str, plots: Iterable[tuple[str, str]]) -> str:
    """The whole page. `folder` is where the figures lie, as the page links to it; plots are (alt text, path)."""
    every = entries(found)
    places = [*SECTIONS, *dict.fromkeys((e.figures.dataset, e.figures.protocol) for e in every)]
    parts = [_introduction(command, folder), *(f"![{alt}]({path})\n" for alt, path in plots)]
    for place in dict.fromkeys(places):
        here = [each for each in every if (each.figures.dataset, each.figures.protocol) == place]
        parts.append(_section(place, here, folder))
    return "\n".join(parts)


def _introduction(command: str, folder: str) -> str:
    told = (
        "Every data set, retriever and rewriter; what nobody has run says so. Each figure stands in a file in "
        f"[{folder}]({folder}/README.md) with the command, machine, seed and date it came from; `{command}` makes this "
        "page of them.\nR, N and C are Recall, NDCG (the ideal counts every gold tool) and COMP. A grid has one "
        "recall@5 a place; the list below it has everything, also variants and what the papers published.\n"
        "p: paired randomisation test of recall@5 against what its cell names, not corrected for the number of "
        "comparisons. Milliseconds are a query's share of one big batch, and belong to their machine."
    )
    comment = f"<!-- Written by `{command}` out of the files in {folder}/. Change those, not this page. -->"
    return f"# All results in one table\n\n{comment}\n\n{told}\n"


def _section(place: tuple[str, str], here: list[Entry], folder: str) -> str:
    dataset, protocol = place
    title = SECTIONS.get(place, dataset if protocol == "official" else f"{dataset}, {protocol}")
    counts = {(e.figures.queries, e.figures.tools) for e in here if e.measured}
    told = "; ".join(sorted(f"{queries:,} queries{f', {tools:,} tools' if tools else ''}" for queries, tools in counts))
    parts = [f"## {title}\n", f"{told}.\n" if told else "", _grid(here)]
    if here:
        parts += [_list(here, folder), _groups(here)]
    return "\n".join(part for part in parts if part)


def _grid(here: list[Entry]) -> str:
    ours = [each for each in here if each.measured and not each.row.variant]
    cells: dict[tuple[str, str], Entry] = {}
    for each in ours:  # of two that agree, the first
        cells.setdefault((each.row.retriever, each.row.rewriter), each)
    if not cells and here:
        return ""  # published figures on data that nobody here has
    others = dict.fromkeys(retriever for retriever, _ in cells if retriever not in RETRIEVERS)
    lines = [
        "| R@5 | " + " | ".join(REWRITERS.values()) + " |",
        "|---|" + "---|" * len(REWRITERS),
    ]
    for retriever in (*RETRIEVERS, *others):
        values = []
        for rewriter in REWRITERS:
            entry = cells.get((retriever, rewriter))
            values.append(figure(entry.row.metrics[HEAD]) if entry and HEAD in entry.row.metrics else NOT_RUN)
        lines.append(f"| {RETRIEVERS.get(retriever, retriever)} | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def _list(here: list[Entry], folder: str) -> str:
    notes = Footnotes()
    heads = ["system", *METRICS.values(), "p", "ms", "parameters", "from"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for entry in here:
        row, figures = entry.row, entry.figures
        marks = [notes.mark(text) for text in (row.note, figures.note, _comparable(figures)) if text]
        cells = [
            _name(entry) + "".join(f" {mark}" for mark in marks),
            *(_metric(row, metric) for metric in METRICS),
            probability(row.p_values.get(HEAD), row.p_below.get(HEAD), row.against),
            speed(row.milliseconds),
            amount(row.parameters),
            _origin(entry, folder),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *notes.lines]) + "\n"


def _name(entry: Entry) -> str:
    row = entry.row
    name = RETRIEVERS.get(row.retriever, row.retriever)
    if row.rewriter != "none":
        name += f" + {REWRITERS[row.rewriter]}"
    if row.name:
        name += f": {row.name}"
    if entry.measured:
        return name
    return f"*published*, {'comparable' if entry.figures.comparable else '**not comparable**'}: {name}"


def _comparable(figures: Figures) -> str:
    if figures.source == "measured":
        return ""
    return f"{figures.paper}: {'comparable' if figures.comparable else 'not comparable'}; {figures.reason}"


def _metric(row: FigureRow, metric: str) -> str:
    if metric in row.metrics:
        low_high = row.ranges.get(metric)
        return figure(row.metrics[metric]) + (f" ({figure(low_high[0])}-{figure(low_high[1])})" if low_high else "")
    if not row.metrics and metric == HEAD:
        return "by group, below"
    theirs = metric.replace("ndcg@", "ndcg_toolgen@")
    return f"{figure(row.metrics[theirs])} (theirs)" if theirs != metric and theirs in row.metrics else ""


def _origin(entry: Entry, folder: str) -> str:
    figures = entry.figures
    seeds = f", seeds {', '.join(map(str, figures.seeds))}" if len(figures.seeds) > 1 else ""
    where = f"{figures.machine}{seeds}" if entry.measured else figures.paper
    return f"[{where}]({folder}/{entry.file}.json)"


def _groups(here: list[Entry]) -> str:
    grouped = [each for each in here if each.row.groups]
    names = list(dict.fromkeys(name for each in grouped for name in each.row.groups))
    if not names:
        return ""
    lines = ["By group of queries, R@5:\n", "| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for entry in grouped:
        values = [_grouped(entry.row.groups.get(name, {})) for name in names]
        lines.append(f"| {_name(entry)} | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def _grouped(metrics: Mapping[str, float]) -> str:
    if HEAD in metrics:
        return figure(metrics[HEAD])
    theirs = metrics.get("ndcg_toolgen@5")
    return "" if theirs is None else f"{figure(theirs)} (their N@5)"
