"""Data sets as the retrievers' room learns from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.data import DataSet, Gold, load_dataset
from pipelines.protocols import Protocol, apply_protocol
from retrievers.errors import BadInput
from retrievers.settings import TrainingSource
from retrievers.text import document
from retrievers.tuning.examples import Examples, TrainingSet


def training_sets(sources: Sequence[TrainingSource], protocol: Protocol, text: Sequence[str]) -> list[TrainingSet]:
    """One training set a source; a tool reads as the source says, or else as the index does."""
    sets = []
    for source in sources:
        data = apply_protocol(load_dataset(source.path), protocol)
        sets.append(training_set(data, source.text or text))
    names = [each.name for each in sets]
    if len(set(names)) < len(names):
        raise BadInput(f"two data sets to train on have the same name: {', '.join(names)}")
    return sets


def training_set(data: DataSet, text: Sequence[str]) -> TrainingSet:
    """Train and dev of one data set, tools as rows."""
    rows = {tool.id: row for row, tool in enumerate(data.tools)}
    documents = tuple(document(tool, text) for tool in data.tools)
    train, dev = (_examples(data, data.split(split), rows) for split in ("train", "dev"))
    return TrainingSet(data.name, documents, train, dev)


def _examples(data: DataSet, gold: Gold, rows: Mapping[str, int]) -> Examples:
    order = sorted(gold)
    return Examples(
        tuple(data.queries[query].text for query in order),
        tuple(tuple(sorted(rows[tool] for tool in gold[query])) for query in order),
    )
