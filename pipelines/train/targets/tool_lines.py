"""Targets that describe the gold tools: in the phrasing with which the frozen retriever finds them best, or in any."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from pipelines.data.dataset import DataSet, Gold
from pipelines.phrasing import phrase
from pipelines.search import DEPTH, ToolSearch
from retrievers.types import Ranking, ToolId
from rewrite.template import Template


class Choice(Protocol):
    """What of a targets config decides here."""

    @property
    def phrasings(self) -> tuple[str, ...]: ...

    @property
    def choose(self) -> Literal["tool", "set", "any"]: ...

    @property
    def draws(self) -> int: ...

    @property
    def order(self) -> Literal["id", "rank", "random"]: ...

    @property
    def missing(self) -> Literal["imagine", "skip"]: ...

    @property
    def seed(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Lines:
    """What should be answered to every query."""

    of: Mapping[str, Sequence[str]]
    style: str
    """The one phrasing of the whole set, in which tools are also shown; "" where every tool has its own."""
    told: Mapping[str, float]
    """For every phrasing the mean of 1 / place at which it finds its tool."""
    further: Sequence[Mapping[str, Sequence[str]]] = ()
    """The same once more in other phrasings, for the queries to learn from."""


def tool_lines(
    choice: Choice,
    data: DataSet,
    gold: Gold,
    learned: Gold,
    raw: Mapping[str, Ranking],
    search: ToolSearch,
    template: Template,
) -> Lines:
    """One line a gold tool, for every query."""
    needed = sorted({tool for tools in gold.values() for tool in tools})
    known = {tool for tools in learned.values() for tool in tools}
    tools = {tool.id: tool for tool in data.tools}
    lines = {
        name: [phrase(tools[tool], name, template.max_characters, search.fields) for tool in needed]
        for name in choice.phrasings
    }
    goodness = np.array([_goodness(search, lines[name], needed) for name in choice.phrasings])
    # What is best over all is told by the tools of the training queries alone.
    means = goodness[:, [tool in known for tool in needed]].mean(axis=1)
    favourite = int(means.argmax())
    # Of equally good phrasings the one that is best over all: the more alike, the easier to learn.
    goodness[favourite] += np.inf if choice.choose == "set" else 1e-9
    best = dict(zip(needed, goodness.argmax(axis=0), strict=True))
    places = {tool: place for place, tool in enumerate(needed)}

    def said(query: str, draw: int) -> list[str]:
        order = _order(query, gold[query], raw[query], choice, template)[: template.max_lines]
        rows = [_drawn(choice, f"{query}/{tool}", draw) if choice.choose == "any" else best[tool] for tool in order]
        return [lines[choice.phrasings[row]][places[tool]] for tool, row in zip(order, rows, strict=True)]

    return Lines(
        {query: said(query, 0) for query in gold},
        choice.phrasings[favourite] if choice.choose == "set" else "",
        {name: round(float(mean), 4) for name, mean in zip(choice.phrasings, means, strict=True)},
        [{query: said(query, draw) for query in learned} for draw in range(1, choice.draws)],
    )


def _drawn(choice: Choice, key: str, draw: int) -> int:
    """A phrasing by chance, each draw another one until all have had their turn."""
    count = len(choice.phrasings)
    return random.Random(f"{choice.seed}/{key}").sample(range(count), count)[draw % count]


def _goodness(search: ToolSearch, lines: Sequence[str], tools: Sequence[ToolId]) -> list[float]:
    """1 / place at which each line finds its tool."""
    rankings = search.retrieve(lines, DEPTH, "phrasings")
    return [
        1.0 / (ranking.ids.index(tool) + 1) if tool in ranking.ids else 0.0
        for ranking, tool in zip(rankings, tools, strict=True)
    ]


def _order(query: str, gold: frozenset[ToolId], raw: Ranking, choice: Choice, template: Template) -> list[ToolId]:
    """The gold tools in the order of their lines; where candidates are shown, perhaps without those that are not."""
    tools = sorted(gold)
    if template.candidates and choice.missing == "skip":
        tools = [tool for tool in tools if tool in raw.ids[: template.candidates]]
    if choice.order == "random":
        return random.Random(f"{choice.seed}/{query}").sample(tools, len(tools))
    places = {tool: place for place, tool in enumerate(raw.ids)} if choice.order == "rank" else {}
    return sorted(tools, key=lambda tool: (places.get(tool, DEPTH), tool))
