"""Data sets of a reranker, and the lists that retrievers return for their queries, which are kept on disk."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pipelines.data.dataset import DataSet, load_dataset
from pipelines.index.defaults import choose_retriever, index_folder
from pipelines.models import cache_folder
from pipelines.rerank.loading import retriever_words
from pipelines.search import ToolSearch
from pipelines.train.encoder.sets import make_examples, sample_queries, select_queries
from pipelines.train.rerank.settings import RerankConfig, RerankSource
from retrievers.errors import BadInput
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.progress import say
from retrievers.rerank.ordering import count_fixed
from retrievers.text import clean, document
from retrievers.training_set import Examples
from retrievers.types import Tool

LISTS = "lists"
"""Folder of the cache."""
TO_TRAIN, TO_CHOOSE, TO_JUDGE = "train", "dev", "judged"


@dataclass(frozen=True, slots=True)
class RerankSet:
    """One data set: queries to train on, to choose on, and to be judged by where it is not trained on."""

    source: RerankSource
    tools: tuple[Tool, ...]
    documents: tuple[str, ...]
    text: tuple[str, ...]
    examples: Mapping[str, Examples]

    @property
    def name(self) -> str:
        return self.source.name


@dataclass(frozen=True, slots=True)
class FirstLists:
    """The lists of one retriever for the queries of one set."""

    rows: np.ndarray
    """(queries, ranks) rows of the tools, -1 behind the last."""
    fixed: np.ndarray
    """(queries,): tools in front that the query names."""


Lists = dict[str, FirstLists]
"""The retriever in words -> its lists."""


def load_set(source: RerankSource, config: RerankConfig) -> RerankSet:
    """Read a data set. Judged are its test queries, else a sample of all: valid where none was trained on."""
    data = load_dataset(source.path)
    text = source.text or config.text
    gold = {split: select_queries(data, queries, source) for split, queries in data.gold.items()}
    everything = {query: needed for queries in gold.values() for query, needed in queries.items()}
    if not everything:
        raise BadInput(f"no query of {source.path} has the metadata that `where` names: {dict(source.where)}")
    chosen = {
        TO_TRAIN: sample_queries(gold.get("train", {}), config.max_queries, 0),  # the same lists for every seed
        TO_CHOOSE: sample_queries(gold.get("dev", {}), config.max_dev, 0),
        TO_JUDGE: sample_queries(gold.get("test") or everything, config.max_judged, 0),
    }
    return RerankSet(
        source,
        data.tools,
        tuple(clean(document(tool, text)) for tool in data.tools),
        text,
        {name: _examples(data, queries) for name, queries in chosen.items()},
    )


def _examples(data: DataSet, gold: dict[str, frozenset[str]]) -> Examples:
    return make_examples(data, gold, {tool.id: row for row, tool in enumerate(data.tools)})


def load_sets(sources: Sequence[RerankSource], config: RerankConfig, to_train: bool) -> list[RerankSet]:
    """Read several data sets."""
    sets = [load_set(source, config) for source in sources]
    bare = [data.name for data in sets if to_train and len(data.examples[TO_TRAIN]) < 2]
    if bare:
        raise BadInput(f"{bare[0]} has fewer than two training queries; name it under `judged`, or leave it out")
    return sets


def first_lists(data: RerankSet, use: str, config: RerankConfig, context: Context) -> Lists:
    """The lists of every retriever in front; found on disk where an earlier run made them."""
    depth = max(*config.tops, config.training.depth)
    names = config.fronts[:1] if use == TO_TRAIN else config.fronts
    queries = data.examples[use].queries
    folder = cache_folder() / LISTS
    wanted = [(name, _key(data, name, queries, depth, config)) for name in names]
    lists: Lists = {}
    if missing := [name for name, key in wanted if not (folder / key).exists()]:
        say(f"{data.name}: lists of {', '.join(missing)} for {len(queries):,} queries", context.show_progress)
        with _temporary_index(data, config, context) as index:
            for name, key in wanted:
                if name in missing:
                    _write(folder / key, _search(index, name, data, queries, depth))
    for _, key in wanted:
        words, own = _read(folder / key)
        lists[words] = own
    if data.source.index and use != TO_TRAIN:
        index = Index(index_folder(data.source.index), context)
        words, own = _search(index, choose_retriever(index, data.source.retriever), data, queries, depth)
        lists[words] = own
    return lists


@contextmanager
def _temporary_index(data: RerankSet, config: RerankConfig, context: Context) -> Iterator[Index]:
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder) / "index", data.tools, config.retrievers, context, data.text)
        yield Index(Path(folder) / "index", context)


def _search(
    index: Index, retriever: str, data: RerankSet, queries: Sequence[str], depth: int
) -> tuple[str, FirstLists]:
    search = ToolSearch(index, retriever, held_out=True)
    search.check_tools((tool.id for tool in data.tools), f"the index for {data.name}")
    rows = {tool.id: row for row, tool in enumerate(data.tools)}
    names = index.exact_names()
    lists, fixed = np.full((len(queries), depth), -1, dtype=np.int32), np.zeros(len(queries), dtype=np.int32)
    for number, (query, raw) in enumerate(zip(queries, search.retrieve(queries, depth), strict=True)):
        ranking = search.fuse(query, raw, (), depth)
        lists[number, : len(ranking)] = [rows[tool] for tool in ranking.ids]
        fixed[number] = count_fixed(ranking, names.find(query))
    return retriever_words(index, retriever), FirstLists(lists, fixed)


def _key(data: RerankSet, name: str, queries: Sequence[str], depth: int, config: RerankConfig) -> str:
    """File name of lists: everything they depend on is hashed."""
    settings = {part: asdict(own) for part, own in config.retrievers.items()}
    facts = json.dumps([name, settings, depth, list(queries), data.documents], sort_keys=True)
    return f"{data.name}-{name}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.npz"


def _write(path: Path, made: tuple[str, FirstLists]) -> None:
    words, lists = made
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=".part-", suffix=".npz")
    os.close(handle)
    np.savez_compressed(part, words=np.array(words), rows=lists.rows, fixed=lists.fixed)
    os.replace(part, path)


def _read(path: Path) -> tuple[str, FirstLists]:
    with np.load(path, allow_pickle=False) as arrays:
        return str(arrays["words"]), FirstLists(arrays["rows"], arrays["fixed"])
