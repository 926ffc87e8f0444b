"""The tree of codes of a catalogue, opened branch by branch without a script."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from pipelines.report.data import CodedTool, CodeTree
from pipelines.report.markup import Html, foreign, join, section, tabs, tag
from retrievers.text import words

EXPLANATION = (
    "Each tool is a path of codes; tools that share a branch are alike or used together. Open a branch to go down. A "
    "branch is labelled with words that its tools' names have more often than others."
)
WORDS = 4
"""Words per branch."""


def trees(code_trees: Sequence[CodeTree]) -> Html:
    """The section; empty if no system has codes."""
    if not code_trees:
        return Html()
    panels = [(code_tree.system, code_tree.system, tree(code_tree)) for code_tree in code_trees]
    content = tabs("trees", "System", panels) if len(panels) > 1 else panels[0][2]
    return section("codes", "The tree of codes", EXPLANATION, content)


def tree(code_tree: CodeTree) -> Html:
    """The tree of one catalogue."""
    tools = code_tree.tools
    counts = Counter(word for tool in tools for word in _words(tool))
    rarity = {word: math.log(1 + len(tools) / count) for word, count in counts.items()}
    levels = max((len(tool.path) for tool in tools), default=0)
    first = len({tool.path[0] for tool in tools})
    summary = f"{len(tools):,} tools, {levels} levels, {first:,} first branches"
    ordered = sorted(tools, key=lambda tool: (tool.path, tool.id))
    return tag("div", tag("p", summary, class_="explanation"), _branches(ordered, 0, rarity), class_="tree")


def _branches(tools: Sequence[CodedTool], depth: int, rarity: dict[str, float]) -> Html:
    branches: dict[int, list[CodedTool]] = {}
    for tool in tools:
        branches.setdefault(tool.path[depth], []).append(tool)
    return tag("ul", *(_branch(branch, depth, rarity) for branch in branches.values()))


def _branch(tools: list[CodedTool], depth: int, rarity: dict[str, float]) -> Html:
    if len(tools) == 1:
        tool = tools[0]
        name: list[str] = [tag("code", _path(tool.path)), " ", foreign(tool.name)]
        return tag("li", *name, *([" ", tag("small", foreign(tool.id))] if tool.id != tool.name else []))
    counts = Counter(word for tool in tools for word in _words(tool))
    typical = sorted(counts, key=lambda word: (-counts[word] * rarity[word], word))[:WORDS]
    head = tag(
        "summary",
        tag("code", _path(tools[0].path[: depth + 1])),
        f" {len(tools):,} tools ",
        tag("small", join(map(foreign, typical), ", ")),
    )
    return tag("li", tag("details", head, _branches(tools, depth + 1, rarity)))


def _path(path: Sequence[int]) -> str:
    return ".".join(map(str, path))


def _words(tool: CodedTool) -> set[str]:
    return {word.casefold() for word in words(tool.name) if len(word) > 1}
