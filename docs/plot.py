"""Draw the pictures of docs/generated/matrix.md from docs/figures/rows.csv, which `rewrite-eval matrix` writes.

Then that of the README from docs/figures/headline.csv, which `benchmarks/headline.py` writes.

python docs/plot.py [CSV] [FOLDER] [HEADLINE]
"""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

DOCS = Path(__file__).parent
SETS = {"toollens": "ToolLens", "toolbench": "ToolBench", "toole": "ToolE", "bfcl": "BFCL", "mcpzero": "MCP-Zero"}
COLOURS = {
    "bm25": "#4d4d4d",
    "dense": "#0072b2",
    "dense-tuned": "#009e73",
    "hybrid": "#cc79a7",
    "masstool": "#d55e00",
    "toolgen": "#b8860b",
    "toolweaver": "#6a3d9a",
}
REWRITERS = ("none", "rules", "zero-shot", "sft", "aligned")
PROTOCOLS = {"official": "official", "unseen-tools": "unseen tools"}
STEPS = {
    "bm25": "BM25",
    "minilm": "MiniLM as it comes",
    "old": "both, by ranks",
    "cross-encoder": "both, by ranks, and a 22M reranker",
    "tools": "bundled:tools",
    "added": "bundled:tools and BM25",
    "hybrid": "the same with the bonus for names",
    "languages": "the same, multilingual where needed: the default",
    "lm-1.5b": "hybrid, and a 1.5B reranker (GPU)",
    "labels": "labels of your own: MassTool",
}
"""Systems of the README's picture, from below."""
FREE = ("tools", "added", "hybrid", "languages")
"""Those with an encoder that ships tuned."""
PAID = {"lm-1.5b": COLOURS["toolweaver"], "cross-encoder": COLOURS["toolweaver"], "labels": COLOURS["masstool"]}
"""Rerankers, and training on labels of the catalogue."""
Row = dict[str, str]


def recall(row: Row) -> float:
    """The figure of a row."""
    return float(row["recall@5"])


def select(rows: list[Row], **values: str) -> list[Row]:
    """Rows with these values."""
    return [row for row in rows if all(row[key] == value for key, value in values.items())]


def connect(axes: Axes, rows: list[Row], key: str, steps: list[str]) -> None:
    """One line per retriever over the steps of `key`."""
    for retriever, colour in COLOURS.items():
        mine = sorted(select(rows, retriever=retriever), key=lambda row: steps.index(row[key]))
        axes.plot([steps.index(row[key]) for row in mine], list(map(recall, mine)), "o-", color=colour, markersize=4)
    axes.set_xticks(range(len(steps)), [PROTOCOLS.get(step, step) for step in steps], fontsize=8)
    axes.set_xlim(-0.4, len(steps) - 0.6)


def latency(axes: Axes, rows: list[Row]) -> None:
    """Recall against milliseconds; circles were measured on CPUs, squares on a GPU."""
    for row in (row for row in rows if row["milliseconds"]):
        marker = "s" if row["gpu"] == "1" else "o"
        x, colour = float(row["milliseconds"]), COLOURS.get(row["retriever"], "#a6761d")
        axes.plot(x, recall(row), marker, color=colour, markersize=8, markeredgecolor="white")
        letter = "" if row["rewriter"] == "none" else row["rewriter"][0]
        axes.annotate(letter, (x, recall(row)), ha="center", va="center_baseline", color="white", fontsize=6)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xlim(0.1, 1000)


def save(path: Path, title: str, panels: dict[str, list[Row]], draw: object, *arguments: object) -> None:
    """One panel per data set, with a legend of retrievers."""
    height = math.ceil(len(panels) / 3)
    figure, grid = plt.subplots(height, 3, figsize=(11, 3.4 * height), squeeze=False)
    for axes, (name, rows) in zip(grid.flat, panels.items(), strict=False):
        draw(axes, rows, *arguments)  # type: ignore[operator]
        axes.set_title(name, fontsize=10)
        axes.set_ylim(0, 1.04)
        axes.grid(axis="y", alpha=0.4)
    for axes in list(grid.flat)[len(panels) :]:
        axes.remove()
    legend = [Line2D([], [], color=colour, marker="o", label=name) for name, colour in COLOURS.items()]
    figure.legend(handles=legend, loc="lower center", ncols=len(legend), fontsize=8)
    figure.suptitle(title)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def draw_headline(rows: list[Row], path: Path) -> None:
    """A bar per system, the mean R@5 of all sets, and a dot per set."""
    figure, axes = plt.subplots(figsize=(9, 3.9))
    for height, system in enumerate(STEPS):
        values = [recall(row) for row in select(rows, system=system)]
        mean = sum(values) / len(values)
        colour = PAID.get(system, COLOURS["dense-tuned" if system in FREE else "dense"])
        axes.barh(height, mean, color=colour, alpha=0.35)
        axes.plot(values, [height] * len(values), ".", color=colour, markersize=5)
        axes.annotate(f"{mean:.3f}", (0.01, height), va="center", fontsize=8)
    axes.set_yticks(range(len(STEPS)), list(STEPS.values()), fontsize=8)
    axes.set_xlim(0, 1)
    axes.set_title("R@5 on ten judged catalogues (dot: one of them)", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def read_rows(source: Path) -> list[Row]:
    """The rows of a CSV file."""
    with source.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def main(
    source: Path = DOCS / "figures" / "rows.csv",
    folder: Path = DOCS / "pictures",
    headline: Path = DOCS / "figures" / "headline.csv",
) -> None:
    """Draw all four pictures."""
    plt.rcParams.update({"svg.hashsalt": "toolrewrite", "svg.fonttype": "none"})
    draw_headline(read_rows(headline), folder / "headline.svg")
    rows = read_rows(source)
    official = {title: select(rows, dataset=name, protocol="official") for name, title in SETS.items()}
    title = "R@5 against milliseconds per query (square: GPU; r rules, z zero-shot, s SFT, a aligned)"
    save(folder / "quality-latency.svg", title, official, latency)
    ladder = {}
    for name, title in SETS.items():
        for protocol in PROTOCOLS:
            mine = select(rows, dataset=name, protocol=protocol)
            if any(row["rewriter"] != "none" for row in mine):
                ladder[title if protocol == "official" else f"{title}, unseen tools"] = mine
    save(folder / "ladder.svg", "R@5 by rewriter", ladder, connect, "rewriter", list(REWRITERS))
    raw = {title: select(rows, dataset=name, rewriter="none") for name, title in SETS.items()}
    save(folder / "seen-unseen.svg", "R@5: official test and unseen tools", raw, connect, "protocol", list(PROTOCOLS))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
