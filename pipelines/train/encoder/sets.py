"""Data sets of a general encoder: documents, training queries, and queries to evaluate on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipelines.data.dataset import DataSet, Gold, load_dataset, stable_hash
from pipelines.train.encoder.settings import EncoderConfig, EncoderSource
from retrievers.dense.tuning.mixture import MixtureSet
from retrievers.errors import BadInput
from retrievers.text import clean, document
from retrievers.training_set import Examples
from retrievers.types import ToolId


@dataclass(frozen=True, slots=True)
class EncoderSet:
    """One data set: its training queries, and others to evaluate on where it is left out."""

    name: str
    licence: str
    ids: tuple[ToolId, ...]
    training: MixtureSet
    judged: Examples


def load_set(source: EncoderSource, config: EncoderConfig) -> EncoderSet:
    """Read a data set. Judged are its test queries, else a sample of all: valid where none was trained on."""
    data = load_dataset(source.path)
    rows = {tool.id: row for row, tool in enumerate(data.tools)}
    documents = tuple(clean(document(tool, source.text or config.text)) for tool in data.tools)
    gold = {split: select_queries(data, queries, source) for split, queries in data.gold.items()}
    everything = {query: needed for queries in gold.values() for query, needed in queries.items()}
    if not everything:
        raise BadInput(f"no query of {source.path} has the metadata that `where` names: {dict(source.where)}")
    tests = gold.get("test") or sample_queries(everything, config.max_judged, config.seed)
    train = make_examples(data, sample_queries(gold.get("train", {}), config.max_queries, config.seed), rows)
    return EncoderSet(
        source.name,
        source.licence,
        tuple(tool.id for tool in data.tools),
        MixtureSet(source.name, documents, train),
        make_examples(data, tests, rows),
    )


def load_sets(sources: Sequence[EncoderSource], config: EncoderConfig, to_train: bool) -> list[EncoderSet]:
    """Read several data sets."""
    sets = [load_set(source, config) for source in sources]
    bare = [data.name for data in sets if to_train and len(data.training.train) < 2]
    if bare:
        raise BadInput(f"{bare[0]} has fewer than two training queries; name it under `judged`, or leave it out")
    return sets


def select_queries(data: DataSet, queries: Gold, source: EncoderSource) -> Gold:
    """Queries with the metadata that the source's `where` names."""
    return {
        query: needed
        for query, needed in queries.items()
        if all(str(data.queries[query].metadata.get(key)) in values for key, values in source.where.items())
    }


def sample_queries(gold: Gold, size: int, seed: int) -> Gold:
    """At most `size` queries, drawn by a hash."""
    order = sorted(gold, key=lambda query: stable_hash(f"encoder/{seed}/{query}"))
    return {query: gold[query] for query in order[:size]}


def make_examples(data: DataSet, gold: Gold, rows: Mapping[ToolId, int]) -> Examples:
    """Queries with the rows they need; equal texts are one query with the tools of all."""
    needed: dict[str, set[int]] = {}
    for query in sorted(gold):
        if text := clean(data.queries[query].text):
            needed.setdefault(text, set()).update(rows[tool] for tool in gold[query])
    return Examples(tuple(needed), tuple(tuple(sorted(tools)) for tools in needed.values()))
