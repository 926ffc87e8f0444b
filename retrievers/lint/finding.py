"""What a check hands back, and how names are quoted in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from retrievers.text import clean
from retrievers.types import Tool, ToolId

Severity = Literal["error", "warning", "hint"]

_LONGEST = 80


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing in a catalogue that makes retrieval fail."""

    check: str
    """Which check speaks: a key of `retrievers.lint.CHECKS`."""
    tool_ids: tuple[ToolId, ...]
    message: str
    """One plain sentence that names the way out."""
    severity: Severity
    """error: these tools will not be found or told apart; warning: they will often be missed; hint: worth a look."""


def quoted(value: str) -> str:
    """A name as it stands in a message: one line, printable, of bounded length."""
    line = " ".join(clean(value).split())
    return f"`{line if len(line) <= _LONGEST else line[: _LONGEST - 1] + '…'}`"


def listed(values: Iterable[str], most: int = 4) -> str:
    """The first values quoted, and how many more there are."""
    distinct = list(dict.fromkeys(values))
    shown = ", ".join(quoted(value) for value in distinct[:most])
    return shown if len(distinct) <= most else f"{shown} and {len(distinct) - most} more"


def ids(tools: Sequence[Tool]) -> tuple[ToolId, ...]:
    """Their ids, in the order given."""
    return tuple(tool.id for tool in tools)
