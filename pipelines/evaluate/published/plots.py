"""The table's drawings: quality against latency, the ladder of rewriters, seen against unseen tools. Plain SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pipelines.evaluate.published.canvas import Dot, Panel, drawing
from pipelines.evaluate.published.figures import HEAD, RETRIEVERS, REWRITERS
from pipelines.evaluate.published.page import SECTIONS, Entry
from pipelines.report.markup import Html

SETS = {"toollens": "ToolLens", "toolbench": "ToolBench", "toole": "ToolE", "bfcl": "BFCL", "mcpzero": "MCP-Zero"}
LETTERS = {"none": "", "rules": "r", "zero-shot": "z", "sft": "s", "aligned": "a"}
"""Of rewriters, where there is no room for words."""
COLOURS = ("#4d4d4d", "#0072b2", "#009e73", "#cc79a7", "#d55e00", "#b8860b", "#6a3d9a", "#a6761d")


def colour(retriever: str) -> str:
    """The same for a retriever in every drawing."""
    known = list(RETRIEVERS)
    return COLOURS[known.index(retriever) if retriever in known else len(known)]


def draw(every: Sequence[Entry]) -> dict[str, tuple[str, Html]]:
    """File name -> what it shows in words, and the drawing."""
    ours = [each for each in every if each.measured and HEAD in each.row.metrics]
    return {
        "quality-latency.svg": ("Recall at 5 against milliseconds a query, one panel a data set", latency(ours)),
        "ladder.svg": ("Recall at 5 from the raw query to the aligned rewriter, one panel a data set", ladder(ours)),
        "seen-unseen.svg": ("Recall at 5 on the official test and on unseen tools, one panel a data set", unseen(ours)),
    }


def latency(ours: Sequence[Entry]) -> Html:
    """Circles were measured on CPUs, squares on a GPU: only like may be compared with like."""
    panels = []
    for name, title in SETS.items():
        here = [e for e in _of(ours, name, "official") if e.row.milliseconds and not e.row.variant]
        dots = [
            Dot(
                math.log10(e.row.milliseconds or 1),
                e.row.metrics[HEAD],
                _label(e),
                colour(e.row.retriever),
                LETTERS[e.row.rewriter],
                square=on_gpu(e.figures.machine),
            )
            for e in here
        ]
        panels.append(Panel(title, dots, (-1.0, 3.0), {-1: "0.1 ms", 0: "1", 1: "10", 2: "100", 3: "1 s"}, "not timed"))
    letters = ", ".join(f"{letter} {REWRITERS[name]}" for name, letter in LETTERS.items() if letter)
    return drawing("R@5 against milliseconds a query (round: CPU, square: GPU; batches)", panels, _key(ours), letters)


def ladder(ours: Sequence[Entry]) -> Html:
    """One line a retriever; a step that nobody has run has no dot."""
    steps = list(REWRITERS)
    panels = []
    for (name, protocol), _ in SECTIONS.items():
        here = [e for e in _of(ours, name, protocol) if not e.row.variant]
        if not any(e.row.rewriter != "none" for e in here):
            continue
        dots = [
            Dot(steps.index(e.row.rewriter), e.row.metrics[HEAD], "", colour(e.row.retriever), line=e.row.retriever)
            for e in here
        ]
        empty = [step for step in steps if not any(e.row.rewriter == step for e in here)]
        ticks = {place: word + ("\nnot run" if step in empty else "") for place, (step, word) in _steps()}
        panels.append(Panel(f"{SETS[name]}{_unseen(protocol)}", dots, (-0.3, len(steps) - 0.7), ticks))
    return drawing("R@5 from the raw query to the aligned rewriter", panels, _key(ours))


def unseen(ours: Sequence[Entry]) -> Html:
    """Left the official test, right the one whose tools no training query needs; other queries, same catalogue."""
    panels = []
    for name, title in SETS.items():
        dots = []
        for place, protocol in enumerate(("official", "unseen-tools")):
            here = [e for e in _of(ours, name, protocol) if not e.row.variant and e.row.rewriter == "none"]
            dots += [Dot(place, e.row.metrics[HEAD], "", colour(e.row.retriever), line=e.row.retriever) for e in here]
        panels.append(Panel(title, dots, (-0.25, 1.25), {0: "official", 1: "unseen tools"}))
    return drawing("R@5: official test, and unseen tools", panels, _key(ours))


def on_gpu(machine: str) -> bool:
    """Whether a machine's description names a GPU."""
    words = machine.lower()
    return any(word in words for word in ("h200", "h100", "a100", "nvidia", "gpu", "cuda")) and "no gpu" not in words


def _of(ours: Sequence[Entry], dataset: str, protocol: str) -> list[Entry]:
    return [e for e in ours if (e.figures.dataset, e.figures.protocol) == (dataset, protocol)]


def _label(entry: Entry) -> str:
    row = entry.row
    name = RETRIEVERS.get(row.retriever, row.retriever)
    return name if row.rewriter == "none" else f"{name} + {REWRITERS[row.rewriter]}"


def _steps() -> enumerate[tuple[str, str]]:
    return enumerate(REWRITERS.items())


def _unseen(protocol: str) -> str:
    return "" if protocol == "official" else ", unseen tools"


def _key(ours: Sequence[Entry]) -> Mapping[str, str]:
    shown = dict.fromkeys(e.row.retriever for e in ours)
    return {RETRIEVERS.get(name, name): colour(name) for name in shown}
