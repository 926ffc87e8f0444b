"""The queries of an evaluation, and the retrievers that are asked: each query once, and timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pipelines.data.dataset import DataSet
from pipelines.data.splits import Protocol
from pipelines.search import ToolSearch
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.types import Ranking, ToolId
from reward.metrics import DEPTH

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """A retriever of an index."""

    index: str
    retriever: str


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """What came out, and how long it took."""

    value: T
    seconds: float


@dataclass(frozen=True, slots=True)
class Trial:
    """What every system of an evaluation is asked."""

    data: DataSet
    """Split as the protocol says."""
    protocol: Protocol
    split: str

    def order(self, split: str) -> tuple[str, ...]:
        """Query ids, in the order of all lists."""
        return tuple(sorted(self.data.split(split)))

    def texts(self, split: str) -> list[str]:
        """What was said."""
        return [self.data.queries[query].text for query in self.order(split)]

    def gold(self, split: str) -> list[frozenset[ToolId]]:
        """What is needed."""
        gold = self.data.split(split)
        return [gold[query] for query in self.order(split)]


class Bench:
    """Indexes, opened once, and what their retrievers find for the raw queries, asked once."""

    def __init__(self, trial: Trial, context: Context) -> None:
        self.trial, self.context = trial, context
        self._indexes: dict[str, Index] = {}
        self._searches: dict[tuple[Place, str], ToolSearch] = {}
        self._raw: dict[tuple[Place, str], Timed[list[Ranking]]] = {}

    def index(self, folder: str) -> Index:
        """The index in a folder."""
        if folder not in self._indexes:
            self._indexes[folder] = Index(Path(folder), self.context)
        return self._indexes[folder]

    def search(self, place: Place, phrasing: str = "named") -> ToolSearch:
        """The path of a query to one retriever; `phrasing` is how tools are shown to a rewriter."""
        if (place, phrasing) not in self._searches:
            self._searches[place, phrasing] = ToolSearch(self.index(place.index), place.retriever, phrasing=phrasing)
        return self._searches[place, phrasing]

    def raw(self, place: Place, split: str) -> Timed[list[Ranking]]:
        """What the raw queries of a split find."""
        if (place, split) not in self._raw:
            search, texts = self.search(place), self.trial.texts(split)
            search.search(texts[:1], 1)  # loads the model, so that the time is the search's own
            self._raw[place, split] = self.timed(lambda: search.retrieve(texts, DEPTH, f"{place.retriever}, {split}"))
        return self._raw[place, split]

    def timed(self, work: Callable[[], T]) -> Timed[T]:
        """Some work, timed without the help of what was asked before."""
        for encoder in self.context.encoders.values():
            encoder.forget()
        started = time.perf_counter()
        value = work()
        return Timed(value, time.perf_counter() - started)
