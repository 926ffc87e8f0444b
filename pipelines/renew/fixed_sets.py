"""The sets that candidate and live are compared on: the same queries in every round, over the catalogue of today."""

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
class Fixed:
    """A fixed set, as far as the catalogue of today has its tools."""

    name: str
    settings: FixedSet
    data: DataSet
    gold: Gold
    gone: int
    """Queries of tools that are no longer there."""


def load_fixed(settings: Sequence[FixedSet], tools: Mapping[ToolId, Tool], seed: int) -> list[Fixed]:
    """The sets, by names of their own."""
    found: list[Fixed] = []
    for each in settings:
        data = load_dataset(each.data)
        whole = data.split(each.split)
        gold = {query: needed for query, needed in whole.items() if all(tool in tools for tool in needed)}
        if not gold:
            raise BadInput(f"{each.data} has no {each.split} query whose tools are in the live index")
        gone = len(whole) - len(gold)
        if each.max_queries:
            gold = limit_queries(_only(data, each.split, gold), each.max_queries, seed).gold[each.split]
        number = sum(other.data.name == data.name for other in found)
        found.append(Fixed(f"{data.name}-{number + 1}" if number else data.name, each, data, gold, gone))
    return found


def _only(data: DataSet, split: str, gold: Gold) -> DataSet:
    return DataSet(data.name, data.tools, data.queries, {split: gold})


def said_in(fixed: Sequence[Fixed]) -> set[str]:
    """Every utterance of the fixed sets' data, of any split that is judged: none of them may be learned."""
    return {
        normalize_utterance(each.data.queries[query].text)
        for each in fixed
        for query in each.data.gold[each.settings.split]
    }


def write_fixed(folder: Path, fixed: Fixed, tools: Mapping[ToolId, Tool]) -> Path:
    """The set as a data set folder over the catalogue of today, where it is not written yet."""
    target = folder / fixed.name
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        queries = [fixed.data.queries[query] for query in sorted(fixed.gold)]
        write_dataset(target, tools.values(), queries, {fixed.settings.split: fixed.gold})
    return target
