"""The tree of codes of a catalogue: which tools share a branch, to be opened branch by branch. No script needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from pipelines.report.data import CodedTool, CodeTree
from pipelines.report.markup import Html, foreign, join, section, tabs, tag
from retrievers.text import words

EXPLANATION = (
    "Each tool is a path of codes, and tools that share a branch are alike or used together. Open a branch to go down; "
    "its words are those that its tools' names have more often than others."
)
WORDS = 4
"""That stand for a branch."""


def trees(found: Sequence[CodeTree]) -> Html:
    """The section, or nothing where no system has codes."""
    if not found:
        return Html()
    panels = [(each.system, each.system, tree(each)) for each in found]
    content = tabs("trees", "System", panels) if len(panels) > 1 else panels[0][2]
    return section("codes", "The tree of codes", EXPLANATION, content)


def tree(chosen: CodeTree) -> Html:
    """One catalogue's."""
    rarity = _rarity(chosen.tools)
    levels = max((len(tool.path) for tool in chosen.tools), default=0)
    first = len({tool.path[0] for tool in chosen.tools})
    told = f"{len(chosen.tools):,} tools, {levels} levels, {first:,} first branches"
    ordered = sorted(chosen.tools, key=lambda tool: (tool.path, tool.id))
    return tag("div", tag("p", told, class_="explanation"), _below(ordered, 0, rarity), class_="tree")


def _below(tools: Sequence[CodedTool], depth: int, rarity: dict[str, float]) -> Html:
    """The branches of some tools whose paths agree so far."""
    branches: dict[int, list[CodedTool]] = {}
    for tool in tools:
        branches.setdefault(tool.path[depth], []).append(tool)
    return tag("ul", *(_branch(each, depth, rarity) for each in branches.values()))


def _branch(tools: list[CodedTool], depth: int, rarity: dict[str, float]) -> Html:
    if len(tools) == 1:
        tool = tools[0]
        name: list[str] = [tag("code", _written(tool.path)), " ", foreign(tool.name)]
        return tag("li", *name, *([" ", tag("small", foreign(tool.id))] if tool.id != tool.name else []))
    head = tag(
        "summary",
        tag("code", _written(tools[0].path[: depth + 1])),
        f" {len(tools):,} tools ",
        tag("small", join(map(foreign, _typical(tools, rarity)), ", ")),
    )
    return tag("li", tag("details", head, _below(tools, depth + 1, rarity)))


def _written(path: Sequence[int]) -> str:
    return ".".join(map(str, path))


def _typical(tools: Sequence[CodedTool], rarity: dict[str, float]) -> list[str]:
    counts = Counter(word for tool in tools for word in _words(tool))
    return sorted(counts, key=lambda word: (-counts[word] * rarity[word], word))[:WORDS]


def _rarity(tools: Sequence[CodedTool]) -> dict[str, float]:
    counts = Counter(word for tool in tools for word in _words(tool))
    return {word: math.log(1 + len(tools) / count) for word, count in counts.items()}


def _words(tool: CodedTool) -> set[str]:
    return {word.casefold() for word in words(tool.name) if len(word) > 1}
