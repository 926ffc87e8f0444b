"""Checks that compare every tool with every other: near-duplicate and hub."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from retrievers.lint.finding import Finding, Progress, ids, listed, quoted
from retrievers.lint.neighbours import neighbourhood, vectors
from retrievers.lint.texts import duplicate_key
from retrievers.text import FIELDS, document, tokens
from retrievers.types import Tool

NEIGHBOURS = 10  # nearest tools that count for hubs: an agent is shown about ten

HUB_FACTOR = 4  # a hub is a neighbour at least this many times as often as the average tool

HUB_SPREAD = 6
"""And this many standard deviations above the median, estimated from the median deviation, which hubs do not move. On
ToolBench, MCP and BFCL catalogues half of all tools are within 9 ± 4."""


def alike(tools: Sequence[Tool], similarity: float, progress: Progress | None = None) -> Iterator[Finding]:
    """Near-duplicate clusters, then hubs."""
    # Tools with the same words are one row: they are alike without arithmetic, and ties would blur the neighbours.
    rows: dict[tuple[str, ...], list[Tool]] = {}
    for tool in tools:
        rows.setdefault(tuple(sorted(tokens(document(tool)))), []).append(tool)
    members = list(rows.values())
    near = neighbourhood(vectors(list(rows)), similarity, NEIGHBOURS, progress)
    chained = {row for cluster in near.clusters for row in cluster}
    alone = [[row] for row, group in enumerate(members) if len(group) > 1 and row not in chained]
    for cluster in sorted(near.clusters + alone):
        group = _without_duplicates([tool for row in cluster for tool in members[row]])
        if len(group) > 1:
            yield _near_duplicate(group)
    floor = hub_floor(near.occurrences)
    for row in np.flatnonzero(near.occurrences >= floor).tolist():
        yield _hub(members[row][0], int(near.occurrences[row]))


def hub_floor(occurrences: NDArray[np.float64]) -> float:
    """Number of neighbours from which on a tool is a hub."""
    if not len(occurrences):
        return float("inf")
    median = float(np.median(occurrences))
    deviation = 1.4826 * float(np.median(np.abs(occurrences - median)))
    return max(HUB_FACTOR * NEIGHBOURS, median + HUB_SPREAD * deviation)


def _without_duplicates(tools: Sequence[Tool]) -> list[Tool]:
    """One tool of each set of duplicates, which have their own finding; sorted by id."""
    first: dict[Hashable, Tool] = {}
    for tool in sorted(tools, key=lambda tool: tool.id):
        first.setdefault(duplicate_key(tool), tool)
    return list(first.values())


def _near_duplicate(group: Sequence[Tool]) -> Finding:
    message = (
        f"{len(group)} tools read almost the same ({listed(tool.name for tool in group)}) and differ only in "
        f"{_difference(group)}: merge them, or say in each description what sets it apart"
    )
    return Finding("near-duplicate", ids(group), message, "warning")


def _difference(group: Sequence[Tool]) -> str:
    """The fields in which the tools differ, and some of the words."""
    values: dict[str, list[Hashable]] = {field: [getattr(tool, field) for tool in group] for field in FIELDS}
    differing = [field for field in FIELDS if len(set(values[field])) > 1]
    if differing in (["provider"], ["category"]):
        return f"{differing[0]} ({listed(sorted(str(value) for value in set(values[differing[0]])))})"
    bags = [set(tokens(document(tool))) for tool in group]
    words = sorted(set[str]().union(*bags) - bags[0].intersection(*bags))
    return ", ".join(differing) + (f" (words such as {listed(words)})" if words else "")


def _hub(tool: Tool, count: int) -> Finding:
    message = (
        f"{quoted(tool.name)} is among the {NEIGHBOURS} nearest neighbours of {count} tools, where about {NEIGHBOURS} "
        "are usual, and will be returned for their queries: say what only this tool does"
    )
    return Finding("hub", (tool.id,), message, "warning")
