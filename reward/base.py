"""Types of this package: an attempt at a query, its rankings, and the fusion of rankings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from retrievers.types import Ranking, ToolId
from reward.metrics import Judged


@dataclass(frozen=True, slots=True)
class RewriteAttempt:
    """One answer to one query, parsed."""

    utterance: str
    gold: frozenset[ToolId]
    lines: tuple[str, ...] = ()
    """Empty: the query was left alone."""
    readable: bool = True
    """False where the answer could not be parsed."""
    finished: bool = True
    """False where the answer was cut at the token limit."""
    length: int = 0
    """Characters of the answer beyond those of the word that leaves a query alone."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Attempts and their judged rankings."""

    attempts: Sequence[RewriteAttempt]
    judged: Judged
    """The rankings that would be served, compared with gold."""
    raw: Judged
    """Rankings of the raw utterances."""

    def without_rewrites(self) -> Findings:
        """The same queries, each left alone."""
        alone = [RewriteAttempt(attempt.utterance, attempt.gold) for attempt in self.attempts]
        return Findings(alone, self.raw, self.raw)


class FrozenSearch(Protocol):
    """A frozen retriever that searches the lines which answers propose."""

    @property
    def fingerprint(self) -> str:
        """Name of the exact index that is searched."""

    @property
    def by_utterance(self) -> bool:
        """True if the ranking of a text depends on the utterance for which it was written."""

    def search(self, texts: Sequence[str], k: int, utterances: Sequence[str]) -> list[Ranking]:
        """One ranking per text, each written for one utterance."""


class Fuse(Protocol):
    """Fuses the raw ranking with those of a rewrite's lines; without lines the raw ranking is served."""

    def __call__(self, utterance: str, raw: Ranking, lists: Sequence[Ranking], k: int) -> Ranking: ...


class RerankAll(Protocol):
    """Reranks the fused lists of a whole step together; a failure is raised."""

    def __call__(self, utterances: Sequence[str], rankings: Sequence[Ranking]) -> list[Ranking]: ...
