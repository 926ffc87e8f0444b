"""Targets that describe the gold tools, in the phrasing with which the retriever finds them best or in a random one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.data.dataset import DataSet, Gold
from pipelines.phrasing import phrase
from pipelines.search import DEPTH, ToolSearch
from pipelines.train.targets.settings import TargetsConfig
from retrievers.types import Ranking, ToolId
from rewrite.template import Template


@dataclass(frozen=True, slots=True)
class TargetLines:
    """The lines that a rewriter should write for every query."""

    first: Mapping[str, Sequence[str]]
    style: str
    """The one phrasing of the whole set, in which candidates are shown too; "" if every tool has its own."""
    phrasing_scores: Mapping[str, float]
    """The mean reciprocal rank of every phrasing."""
    further: Sequence[Mapping[str, Sequence[str]]] = ()
    """Further draws in other phrasings, for training queries."""


def tool_lines(
    config: TargetsConfig,
    data: DataSet,
    gold: Gold,
    learned: Gold,
    raw: Mapping[str, Ranking],
    search: ToolSearch,
    template: Template,
) -> TargetLines:
    """One line per gold tool, for every query."""
    needed = sorted({tool for tools in gold.values() for tool in tools})
    known = {tool for tools in learned.values() for tool in tools}
    tools = {tool.id: tool for tool in data.tools}
    lines = {
        name: [phrase(tools[tool], name, template.max_characters, search.fields) for tool in needed]
        for name in config.phrasings
    }
    scores = np.array([_reciprocal_ranks(search, lines[name], needed) for name in config.phrasings])
    # The best phrasing overall is chosen on the tools of training queries only.
    means = scores[:, [tool in known for tool in needed]].mean(axis=1)
    favourite = int(means.argmax())
    # Among equal phrasings take the one that is best overall: similar lines are easier to learn.
    scores[favourite] += np.inf if config.phrasing_choice == "set" else 1e-9
    best = dict(zip(needed, scores.argmax(axis=0), strict=True))
    rows = {tool: row for row, tool in enumerate(needed)}

    def lines_of(query: str, draw: int) -> list[str]:
        order = _order(gold[query], raw[query], config, template)[: template.max_lines]
        phrasings = [
            _draw_phrasing(config, f"{query}/{tool}", draw) if config.phrasing_choice == "any" else best[tool]
            for tool in order
        ]
        return [lines[config.phrasings[number]][rows[tool]] for tool, number in zip(order, phrasings, strict=True)]

    return TargetLines(
        {query: lines_of(query, 0) for query in gold},
        config.phrasings[favourite] if config.phrasing_choice == "set" else "",
        {name: round(float(mean), 4) for name, mean in zip(config.phrasings, means, strict=True)},
        [{query: lines_of(query, draw) for query in learned} for draw in range(1, config.draws)],
    )


def _draw_phrasing(config: TargetsConfig, key: str, draw: int) -> int:
    """A random phrasing, each draw another one until all have been used."""
    count = len(config.phrasings)
    return random.Random(f"{config.seed}/{key}").sample(range(count), count)[draw % count]


def _reciprocal_ranks(search: ToolSearch, lines: Sequence[str], tools: Sequence[ToolId]) -> list[float]:
    rankings = search.retrieve(lines, DEPTH, "phrasings")
    return [
        1.0 / (ranking.ids.index(tool) + 1) if tool in ranking.ids else 0.0
        for ranking, tool in zip(rankings, tools, strict=True)
    ]


def _order(gold: frozenset[ToolId], raw: Ranking, config: TargetsConfig, template: Template) -> list[ToolId]:
    """The gold tools in the order of their lines; with `missing: skip`, only those among the candidates."""
    tools = sorted(gold)
    if template.candidates and config.missing == "skip":
        tools = [tool for tool in tools if tool in raw.ids[: template.candidates]]
    ranks = {tool: rank for rank, tool in enumerate(raw.ids)} if config.order == "rank" else {}
    return sorted(tools, key=lambda tool: (ranks.get(tool, DEPTH), tool))
