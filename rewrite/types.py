"""Types of this package: RewriteRequest -> Answer -> Rewrite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Message = dict[str, str]
"""`role` and `content`, as in chat models."""
Prompt = list[Message]

Status = Literal["rewritten", "none", "unparseable", "too-long"]
"""Outcome for a query: rewritten, deliberately left alone, answered with nothing usable, too long for the model."""

Outcome = Literal["rewritten", "echo", "none", "unparseable", "too-long"]
"""A status that tells a rewrite from an echo, whose lines only repeat the utterance."""
NOT_ASKED = "not-asked-"
"""Begins the status of a row about which the rewriter was not asked: not-asked-card, -detector or -confident."""


@dataclass(frozen=True, slots=True)
class RewriteRequest:
    """A rewriter's input for one query."""

    utterance: str
    candidates: tuple[str, ...] = ()
    """Texts of the raw query's best tools, for templates that show them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's output."""

    text: str
    tokens: int
    finished: bool = True
    """False where it was cut at the token limit."""
    votes: tuple[int, ...] = ()
    """Where it was merged of several answers: per line, the number of those that have it."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One search query per needed tool, or none."""

    lines: tuple[str, ...] = ()
    status: Status = "rewritten"
    answer: str = ""
    """The model's output, unchanged."""
    tokens: int = 0
    finished: bool = True
    """False where the answer was cut: its last line is not read, unless it is the only one."""
    cut: int = 0
    """Candidates that did not fit into the prompt."""
    votes: tuple[int, ...] = ()
    """Per line, the number of answers that have it; empty for a single answer."""
