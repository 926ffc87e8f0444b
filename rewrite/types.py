"""The words of this room: Ask, Answer, Rewrite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Message = dict[str, str]
"""`role` and `content`, as chat models take them."""
Prompt = list[Message]

Status = Literal["rewritten", "none", "unparseable", "too-long"]
"""What became of a query: rewritten, deliberately left alone, answered with nothing usable, too long to be asked."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a rewriter is given for one query."""

    utterance: str
    candidates: tuple[str, ...] = ()
    """Texts of tools that the raw query found, best first, for templates that show them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model wrote."""

    text: str
    tokens: int
    """How many tokens it wrote."""
    finished: bool = True
    """False where a cap ended it."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One query a needed tool, or none."""

    lines: tuple[str, ...] = ()
    status: Status = "rewritten"
    answer: str = ""
    """What the model wrote, as it wrote it."""
    tokens: int = 0
    finished: bool = True
    """False where a cap ended the answer: its last line is not read, unless it is the only one."""
    cut: int = 0
    """Candidates that did not fit into the prompt."""
