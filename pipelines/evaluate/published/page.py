"""The results page in Markdown, and the CSV behind its plots, both made from files of figures alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipelines.evaluate.published.figures import HEAD, RETRIEVERS, REWRITERS, FigureFile, FigureRow

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
"""Data sets that are always shown; others follow if there are figures for them."""
METRICS = {"recall@3": "R@3", "recall@5": "R@5", "recall@10": "R@10", "ndcg@5": "N@5", "comp@5": "C@5"}
PLOTS = {
    "quality-latency.svg": "Recall at 5 against milliseconds per query, one panel per data set",
    "ladder.svg": "Recall at 5 from the raw query to the aligned rewriter, one panel per data set",
    "seen-unseen.svg": "Recall at 5 on the official test and on unseen tools, one panel per data set",
}
"""Pictures drawn by docs/plot.py -> alt text."""
GPUS = ("h200", "h100", "a100", "nvidia", "gpu", "cuda")


@dataclass(frozen=True, slots=True)
class PageRow:
    """A row of figures and its file."""

    file: str
    figures: FigureFile
    row: FigureRow

    @property
    def measured(self) -> bool:
        """True for our own figures, False for published ones."""
        return self.figures.source == "measured"

    @property
    def name(self) -> str:
        """The system as the lists show it."""
        row = self.row
        name = RETRIEVERS.get(row.retriever, row.retriever)
        name += f" + {REWRITERS[row.rewriter]}" if row.rewriter != "none" else ""
        name += f": {row.name}" if row.name else ""
        comparable = "comparable" if self.figures.comparable else "**not comparable**"
        return name if self.measured else f"*published*, {comparable}: {name}"


def page_rows(files: Mapping[str, FigureFile]) -> list[PageRow]:
    """All rows of test splits, ordered by origin (ours first), retriever, rewriter."""
    retrievers, rewriters = list(RETRIEVERS), list(REWRITERS)

    def order(entry: PageRow) -> tuple[bool, int, int, bool]:
        row = entry.row
        retriever = retrievers.index(row.retriever) if row.retriever in retrievers else len(retrievers)
        return not entry.measured, retriever, rewriters.index(row.rewriter), row.variant

    tested = {name: figures for name, figures in files.items() if figures.split in ("test", "")}
    return sorted((PageRow(name, figures, row) for name, figures in tested.items() for row in figures.rows), key=order)


def plot_csv(rows: Iterable[PageRow]) -> str:
    """The figures of the tables, one per line, for docs/plot.py."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["dataset", "protocol", "retriever", "rewriter", HEAD, "milliseconds", "gpu"])
    for entry in rows:
        row, figures, machine = entry.row, entry.figures, entry.figures.machine.lower()
        if entry.measured and not row.variant and HEAD in row.metrics:
            gpu = any(word in machine for word in GPUS) and "no gpu" not in machine
            cells = [figures.dataset, figures.protocol, row.retriever, row.rewriter, row.metrics[HEAD]]
            writer.writerow([*cells, "" if row.milliseconds is None else row.milliseconds, int(gpu)])
    return stream.getvalue()


def page(files: Mapping[str, FigureFile], command: str, folder: str, pictures: str) -> str:
    """The whole page. `folder` and `pictures` are the folders of figures and plots as the page links to them."""
    rows = page_rows(files)
    keys = [*SECTIONS, *((entry.figures.dataset, entry.figures.protocol) for entry in rows)]
    parts = [_introduction(command, folder), *(f"![{alt}]({pictures}/{name})\n" for name, alt in PLOTS.items())]
    for key in dict.fromkeys(keys):
        mine = [entry for entry in rows if (entry.figures.dataset, entry.figures.protocol) == key]
        parts.append(_section(key, mine, folder))
    return "\n".join(parts)


def _introduction(command: str, folder: str) -> str:
    return (
        "# All results in one table\n\n"
        f"<!-- Written by `{command}` from the files in {folder}/. Change those, not this page. -->\n\n"
        "Every data set, retriever and rewriter; a combination without a figure is marked.\n"
        f"Each figure comes from a file in [{folder}]({folder}/README.md) with its command, machine, seed and date;\n"
        f"`{command}` makes this page from them,\n"
        "and `python docs/plot.py` the pictures.\n\n"
        "R, N and C are Recall, NDCG (the ideal counts every gold tool) and COMP. A table has one recall@5 per cell;\n"
        "the list below it has all figures, with variants and published ones.\n"
        "p: paired randomisation test of recall@5 against the system in brackets, not corrected for the number of\n"
        "comparisons. Milliseconds are per query in one big batch, and depend on the machine.\n"
    )


def _section(key: tuple[str, str], rows: list[PageRow], folder: str) -> str:
    dataset, protocol = key
    title = SECTIONS.get(key, dataset if protocol == "official" else f"{dataset}, {protocol}")
    counts = {(entry.figures.queries, entry.figures.tools) for entry in rows if entry.measured}
    sizes = "; ".join(sorted(f"{queries:,} queries" + f", {tools:,} tools" * bool(tools) for queries, tools in counts))
    parts = [f"## {title}\n", f"{sizes}.\n" if sizes else "", _grid(rows)]
    if rows:
        parts += [_list(rows, folder), _groups(rows)]
    return "\n".join(part for part in parts if part)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _grid(rows: list[PageRow]) -> str:
    cells: dict[tuple[str, str], FigureRow] = {}
    for entry in rows:
        if entry.measured and not entry.row.variant:
            cells.setdefault((entry.row.retriever, entry.row.rewriter), entry.row)
    if not cells and rows:
        return ""  # only published figures
    others = dict.fromkeys(retriever for retriever, _ in cells if retriever not in RETRIEVERS)
    lines = []
    for retriever in (*RETRIEVERS, *others):
        mine = [cells.get((retriever, rewriter)) for rewriter in REWRITERS]
        values = [_figure(row.metrics[HEAD]) if row and HEAD in row.metrics else NOT_RUN for row in mine]
        lines.append([RETRIEVERS.get(retriever, retriever), *values])
    return "\n".join(_table(["R@5", *REWRITERS.values()], lines)) + "\n"


def _list(rows: list[PageRow], folder: str) -> str:
    notes: dict[str, int] = {}
    lines = []
    for entry in rows:
        row, figures = entry.row, entry.figures
        texts = [row.note, figures.note]
        if not entry.measured:
            texts.append(f"{figures.paper}: {'' if figures.comparable else 'not '}comparable; {figures.reason}")
        marks = "".join(f" <sup>{notes.setdefault(text, len(notes) + 1)}</sup>" for text in texts if text)
        metrics = [_metric(row, metric) for metric in METRICS]
        seeds = f", seeds {', '.join(map(str, figures.seeds))}" if len(figures.seeds) > 1 else ""
        origin = f"[{f'{figures.machine}{seeds}' if entry.measured else figures.paper}]({folder}/{entry.file}.json)"
        lines.append(
            [entry.name + marks, *metrics, _p_value(row), _speed(row.milliseconds), _size(row.parameters), origin]
        )
    table = _table(["system", *METRICS.values(), "p", "ms", "parameters", "from"], lines)
    return "\n".join([*table, "", *(f"{number}. {text}" for text, number in notes.items())]) + "\n"


def _metric(row: FigureRow, metric: str) -> str:
    if metric in row.metrics:
        bounds = row.ranges.get(metric)
        return _figure(row.metrics[metric]) + (f" ({_figure(bounds[0])}-{_figure(bounds[1])})" if bounds else "")
    if not row.metrics and metric == HEAD:
        return "by group, below"
    theirs = metric.replace("ndcg@", "ndcg_toolgen@")
    return f"{_figure(row.metrics[theirs])} (theirs)" if theirs != metric and theirs in row.metrics else ""


def _groups(rows: list[PageRow]) -> str:
    grouped = [entry for entry in rows if entry.row.groups]
    names = list(dict.fromkeys(name for entry in grouped for name in entry.row.groups))
    if not names:
        return ""
    lines = [[entry.name, *(_group(entry.row.groups.get(name, {})) for name in names)] for entry in grouped]
    return "\n".join(["By group of queries, R@5:\n", *_table(["", *names], lines)]) + "\n"


def _group(metrics: Mapping[str, float]) -> str:
    if HEAD in metrics:
        return _figure(metrics[HEAD])
    theirs = metrics.get("ndcg_toolgen@5")
    return "" if theirs is None else f"{_figure(theirs)} (their N@5)"


def _figure(value: float) -> str:
    """0.347 -> .347"""
    return f"{value:.3f}".removeprefix("0")


def _p_value(row: FigureRow) -> str:
    p, below = row.p_values.get(HEAD), row.p_below.get(HEAD)
    if below is None and p is None:
        return ""
    below = 0.001 if below is None and p is not None and p < 0.001 else below
    bound = f"< {f'{below:g}'.removeprefix('0')}" if below is not None else ""
    return f"{bound or _figure(p or 0)} ({row.against})"


def _speed(milliseconds: float | None) -> str:
    if milliseconds is None:
        return ""
    return f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.2g}"


def _size(parameters: int | None) -> str:
    """22700000 -> 22.7M"""
    if parameters is None:
        return ""
    for unit, size in (("B", 10**9), ("M", 10**6)):
        if parameters >= size:
            return f"{parameters / size:.3g}{unit}"
    return f"{parameters:,}"
