"""Split the training queries into those of fine-tuning and those held out for alignment."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.data.dataset import Gold, stable_hash
from pipelines.train.targets.settings import TargetsConfig
from retrievers.errors import BadInput


@dataclass(frozen=True, slots=True)
class TargetQueries:
    """The training queries, split."""

    train: Gold
    align: Gold
    """Queries held out of SFT, by themselves or by a tool that they need."""
    left_out: int


def choose_queries(gold: Gold, config: TargetsConfig) -> TargetQueries:
    """Hold out tools and queries, and draw `max_examples` of the others; by hash, always the same."""
    tools = sorted({tool for needed in gold.values() for tool in needed})
    order = sorted(tools, key=lambda tool: stable_hash(f"align/{config.seed}/{tool}"))
    held = set(order[: int(config.hold_out_tools * len(tools))])
    align = {query: needed for query, needed in gold.items() if held & needed}
    free = {query: needed for query, needed in gold.items() if query not in align}
    if not free:
        raise BadInput(f"hold_out_tools {config.hold_out_tools:g} leaves no training query; make it smaller")
    drawn = sorted(free, key=lambda query: stable_hash(f"{config.seed}/{query}"))
    kept = int(config.hold_out_queries * len(drawn))
    align |= {query: free.pop(query) for query in drawn[:kept]}
    drawn = drawn[kept:]
    drawn = drawn[: config.max_examples or None]
    return TargetQueries({query: free[query] for query in sorted(drawn)}, align, len(free) - len(drawn))
