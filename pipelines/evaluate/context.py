"""The queries of an evaluation, and the retrievers that search for them: each query once, and timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pipelines.data.dataset import DataSet
from pipelines.data.splits import Protocol
from pipelines.index.defaults import index_folder
from pipelines.search import ToolSearch
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.types import Ranking, ToolId
from reward.metrics import DEPTH

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetrieverRef:
    """A retriever of an index."""

    index: str
    retriever: str


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """A result and the seconds it took."""

    value: T
    seconds: float


@dataclass(frozen=True, slots=True)
class EvalQueries:
    """The queries that every system of an evaluation answers."""

    data: DataSet
    """Already split by the protocol."""
    protocol: Protocol
    split: str

    def order(self, split: str) -> tuple[str, ...]:
        """Query ids, in the order of all lists."""
        return tuple(sorted(self.data.split(split)))

    def texts(self, split: str) -> list[str]:
        """Query texts."""
        return [self.data.queries[query].text for query in self.order(split)]

    def gold(self, split: str) -> list[frozenset[ToolId]]:
        """Needed tools per query."""
        gold = self.data.split(split)
        return [gold[query] for query in self.order(split)]


class EvalContext:
    """Indexes, opened once, and the rankings of the raw queries, searched once."""

    def __init__(self, queries: EvalQueries, context: Context) -> None:
        self.queries, self.context = queries, context
        self._indexes: dict[str, Index] = {}
        self._searches: dict[tuple[RetrieverRef, str, bool], ToolSearch] = {}
        self._raw: dict[tuple[RetrieverRef, str], Timed[list[Ranking]]] = {}

    def index(self, folder: str) -> Index:
        """The index in a folder."""
        if folder not in self._indexes:
            self._indexes[folder] = Index(index_folder(folder), self.context)
        return self._indexes[folder]

    def search(self, ref: RetrieverRef, phrasing: str = "named", split: str = "test") -> ToolSearch:
        """The query path of one retriever; `phrasing` is the form in which a rewriter sees tools.

        Queries of a split other than test may be remembered by the retriever: they are held out.
        """
        key = (ref, phrasing, split != "test")
        if key not in self._searches:
            index = self.index(ref.index)
            self._searches[key] = ToolSearch(index, ref.retriever, phrasing=phrasing, held_out=key[2])
        return self._searches[key]

    def raw(self, ref: RetrieverRef, split: str) -> Timed[list[Ranking]]:
        """Rankings of the raw queries of a split."""
        if (ref, split) not in self._raw:
            search, texts = self.search(ref, split=split), self.queries.texts(split)
            search.search(texts[:1], 1)  # loads the model, so that the time is that of the search alone
            self._raw[ref, split] = self.timed(lambda: search.retrieve(texts, DEPTH, f"{ref.retriever}, {split}"))
        return self._raw[ref, split]

    def timed(self, work: Callable[[], T]) -> Timed[T]:
        """Run and time some work, with empty encoder caches."""
        for encoder in self.context.encoders.values():
            encoder.clear_cache()
        started = time.perf_counter()
        value = work()
        return Timed(value, time.perf_counter() - started)
