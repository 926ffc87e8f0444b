"""Work of the search threads: retrieval and detection."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from pipelines.detection import Detection
from pipelines.search import ToolSearch
from pipelines.serve.batcher import Batcher
from retrievers.base import AddsVotes, HasParts, RankingParts, adds_votes
from retrievers.types import Ranking

BATCH_SIZE = 16
"""Texts per search; larger batches need more padding than they save."""
LONG_TEXT = 1_000
"""Characters from which a text counts as several of a batch."""
DEEPER = 8
"""Times as many tools in the next search, where a filter left too few."""
MAX_WAITING = 1_024
"""Texts that may wait for a search thread; further ones get 429."""


@dataclass(frozen=True, slots=True)
class RetrievalJob:
    """A search; texts of equal ones share a batch."""

    search: ToolSearch
    depth: int
    votes: bool = True
    """False leaves out the votes of earlier queries."""

    def __call__(self, texts: Sequence[str]) -> list[Ranking]:
        search = self.search if self.votes else without_votes(self.search)
        return search.retrieve(texts, self.depth)


class VotelessRetriever:
    """Searches as if no query with its tools were known."""

    def __init__(self, retriever: AddsVotes, fingerprint: str) -> None:
        self._retriever, self.fingerprint = retriever, fingerprint

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        return self._retriever.search_without_votes(queries, k)


def without_votes(search: ToolSearch) -> ToolSearch:
    """The same search without votes; the search itself if its retriever adds none."""
    if not adds_votes(search.retriever):
        return search
    plain = copy(search)
    plain.retriever = VotelessRetriever(search.retriever, search.fingerprint)
    return plain


@dataclass(frozen=True, slots=True)
class DetectionJob:
    """A decision of the detector."""

    search: ToolSearch
    threshold: float | None

    def __call__(self, texts: Sequence[str]) -> list[Detection | None]:
        return self.search.detect(texts, self.threshold)


@dataclass(frozen=True, slots=True)
class PartsJob:
    """The parts of rankings."""

    search: ToolSearch
    depth: int

    def __call__(self, texts: Sequence[str]) -> list[RankingParts]:
        retriever = self.search.retriever
        return [
            retriever.ranking_parts(text, self.depth) if isinstance(retriever, HasParts) else RankingParts()
            for text in texts
        ]


SearchBatcher = Batcher[RetrievalJob | DetectionJob | PartsJob, str, Any]


def make_batcher(threads: int) -> SearchBatcher:
    """The search threads; texts with equal jobs share a batch."""
    return Batcher(
        lambda job, texts: list(job(texts)), threads, BATCH_SIZE, MAX_WAITING, lambda text: 1 + len(text) // LONG_TEXT
    )
