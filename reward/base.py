"""The words of this room: an attempt at a query, what was found for it, and how lists are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from retrievers.types import Ranking, ToolId
from reward.metrics import Judged


@dataclass(frozen=True, slots=True)
class Attempt:
    """One answer to one query, parsed."""

    utterance: str
    gold: frozenset[ToolId]
    lines: tuple[str, ...] = ()
    """None: the query was left alone."""
    readable: bool = True
    """False where the answer could not be parsed."""
    finished: bool = True
    """False where a cap ended the answer."""
    length: int = 0
    """Characters of the answer as it was written."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Attempts, and what the retriever found for them."""

    attempts: Sequence[Attempt]
    judged: Judged
    """The lists that would be served, held against gold."""
    raw: Judged
    """Those of the raw utterances."""


class Fuse(Protocol):
    """Joins the raw list with those of a rewrite's lines; without lines, what is served is the raw list."""

    def __call__(self, utterance: str, raw: Ranking, lists: Sequence[Ranking], k: int) -> Ranking: ...
