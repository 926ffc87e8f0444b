"""Fixed sets: the queries that candidate and live are compared on, over the current catalogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.data.dataset import DataSet, Gold, limit_queries, load_dataset
from pipelines.data.dataset_writer import normalize_utterance, write_dataset
from pipelines.renew.settings import FixedSet
from retrievers.errors import BadInput
from retrievers.types import Tool, ToolId


@dataclass(frozen=True, slots=True)
class LoadedSet:
    """A fixed set without the queries whose tools left the catalogue."""

    name: str
    settings: FixedSet
    data: DataSet
    gold: Gold
    num_removed: int


def load_fixed_sets(settings: Sequence[FixedSet], tools: Mapping[ToolId, Tool], seed: int) -> list[LoadedSet]:
    """Load the sets, each under a unique name."""
    loaded: list[LoadedSet] = []
    for fixed in settings:
        data = load_dataset(fixed.data)
        whole = data.split(fixed.split)
        gold = {query: needed for query, needed in whole.items() if all(tool in tools for tool in needed)}
        if not gold:
            raise BadInput(f"{fixed.data} has no {fixed.split} query whose tools are in the live index", "fixed_sets")
        num_removed = len(whole) - len(gold)
        if fixed.max_queries:
            present = DataSet(data.name, data.tools, data.queries, {fixed.split: gold})
            gold = limit_queries(present, fixed.max_queries, seed).gold[fixed.split]
        number = sum(other.data.name == data.name for other in loaded)
        name = f"{data.name}-{number + 1}" if number else data.name
        loaded.append(LoadedSet(name, fixed, data, gold, num_removed))
    return loaded


def fixed_utterances(sets: Sequence[LoadedSet]) -> set[str]:
    """Normalized utterances of the fixed sets, which must not be learned."""
    return {
        normalize_utterance(fixed.data.queries[query].text)
        for fixed in sets
        for query in fixed.data.gold[fixed.settings.split]
    }


def write_fixed_set(folder: Path, fixed: LoadedSet, tools: Mapping[ToolId, Tool]) -> Path:
    """Write the set as a data set folder over the current catalogue, unless it exists."""
    target = folder / fixed.name
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        queries = [fixed.data.queries[query] for query in sorted(fixed.gold)]
        write_dataset(target, tools.values(), queries, {fixed.settings.split: fixed.gold})
    return target
