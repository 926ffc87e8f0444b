"""Which training queries a rewriter learns from, and which are kept for later."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from pipelines.data.dataset import Gold, stable_hash
from retrievers.errors import BadInput
from retrievers.types import ToolId


class Choice(Protocol):
    """What of a targets config decides here."""

    @property
    def hold_out_tools(self) -> float: ...

    @property
    def hold_out_queries(self) -> float: ...

    @property
    def most_per_tool(self) -> int: ...

    @property
    def most_examples(self) -> int: ...

    @property
    def seed(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TargetQueries:
    """Training queries, sorted out."""

    train: Gold
    align: Gold
    """Queries that SFT must not see, themselves or a tool that they need."""
    left_out: int


def choose_queries(gold: Gold, choice: Choice) -> TargetQueries:
    """Holds tools and queries out, evens the others, and draws as many as are wanted; by hash, so always the same."""
    tools = sorted({tool for needed in gold.values() for tool in needed})
    order = sorted(tools, key=lambda tool: stable_hash(f"align/{choice.seed}/{tool}"))
    held = set(order[: int(choice.hold_out_tools * len(tools))])
    align = {query: needed for query, needed in gold.items() if held & needed}
    free = {query: needed for query, needed in gold.items() if query not in align}
    if not free:
        raise BadInput("hold_out_tools leaves no query to learn from; make it smaller")
    drawn = sorted(free, key=lambda query: stable_hash(f"{choice.seed}/{query}"))
    kept = int(choice.hold_out_queries * len(drawn))
    align |= {query: free.pop(query) for query in drawn[:kept]}
    drawn = drawn[kept:]
    if choice.most_per_tool:
        drawn = _even(drawn, free, choice.most_per_tool)
    drawn = drawn[: choice.most_examples or None]
    return TargetQueries({query: free[query] for query in sorted(drawn)}, align, len(free) - len(drawn))


def _even(order: list[str], gold: Gold, most: int) -> list[str]:
    """The queries without those all of whose tools have been seen often enough."""
    seen: Counter[ToolId] = Counter()
    kept = []
    for query in order:
        if min(seen[tool] for tool in gold[query]) < most:
            seen.update(gold[query])
            kept.append(query)
    return kept
