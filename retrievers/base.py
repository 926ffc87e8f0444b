"""Interfaces of retrieval: a retriever, a reranker, a vector cache, a detector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np

from retrievers.types import Ranking, ToolId

FindModel = Callable[[str], Path]
"""Turns a model reference (`bundled:…`, a folder, a Hugging Face id) into a folder on this machine."""


class Retriever(Protocol):
    """Ranks tools for queries; does not change once opened."""

    @property
    def fingerprint(self) -> str:
        """Name of the exact index that is searched."""

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """One ranking per query, at most k tools each; none for an empty query."""


class Reranker(Protocol):
    """Reads a query together with every candidate of its ranking; does not change once opened."""

    @property
    def fingerprint(self) -> str:
        """Name of the exact weights."""

    def score(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Per query, a score of each of its documents, higher for a better fit; not finite where the model failed."""


@runtime_checkable
class RemembersQueries(Protocol):
    """A retriever that may know queries with their tools, and so repeats the answer if it is asked one of them."""

    @property
    def remembers_queries(self) -> bool:
        """True if it knows any."""

    def learned(self, utterances: Sequence[str]) -> list[bool]:
        """True for each utterance that the weights were trained on, up to case and order of its words."""

    def search_held_out(self, texts: Sequence[str], k: int, utterances: Sequence[str]) -> list[Ranking]:
        """Search as if the utterance of each text, near copies of it and all dev queries were unknown."""


def remembers(retriever: object) -> TypeGuard[RemembersQueries]:
    """True if a retriever must be searched by `search_held_out` while rewriters are trained and dev is evaluated."""
    return isinstance(retriever, RemembersQueries) and retriever.remembers_queries


@runtime_checkable
class AddsVotes(Protocol):
    """A retriever that may add votes of earlier queries to its scores, and can search without them."""

    @property
    def has_votes(self) -> bool:
        """True if it adds some."""

    def search_without_votes(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """Search as if no query with its tools were known."""


def adds_votes(retriever: object) -> TypeGuard[AddsVotes]:
    """True if `search_without_votes` of a retriever differs from its `search`."""
    return isinstance(retriever, AddsVotes) and retriever.has_votes


@dataclass(frozen=True, slots=True)
class RankingParts:
    """Parts of the ranking of one query, and the votes in it."""

    rankings: Mapping[str, Ranking] = field(default_factory=dict)
    """Of each part, by its name."""
    votes: Sequence[Sequence[ToolId]] = ()
    """Tools that each of the similar earlier queries needed."""


@runtime_checkable
class HasParts(Protocol):
    """A retriever that can show what its rankings are made of."""

    def ranking_parts(self, query: str, k: int) -> RankingParts:
        """The parts of the ranking of one query, each at most k tools deep; with k of 0 only the votes."""


@runtime_checkable
class BoundsScores(Protocol):
    """A retriever whose scores have a limit that depends on the query, such as BM25."""

    def max_scores(self, queries: Sequence[str]) -> list[float]:
        """The score that no tool can exceed, for each query."""


@runtime_checkable
class ComparableScores(Protocol):
    """A retriever whose scores can be added to those of another kind."""

    @property
    def score_unit(self) -> float:
        """The score that counts as much as a cosine of 1."""


class VectorCache(Protocol):
    """Vectors of one model by their texts, so that no text is embedded twice."""

    def get(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """The vectors of the known texts."""

    def put(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Store vectors."""


@runtime_checkable
class Detector(Protocol):
    """Estimates which queries need a tool."""

    @property
    def threshold(self) -> float:
        """Probability from which on a tool is needed; chosen on dev."""

    def probabilities(self, queries: Sequence[str]) -> list[float]:
        """Probability that each query needs a tool."""
