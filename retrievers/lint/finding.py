"""A check's finding, and the quoting of names in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from retrievers.text import clean, visible
from retrievers.types import Tool, ToolId

Severity = Literal["error", "warning", "hint"]
Progress = Callable[[int, int], None]
"""Takes the rows done and all rows."""

_MAX_NAME = 80


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect of a catalogue."""

    check: str
    """Name of the check, one of `retrievers.lint.CHECKS`."""
    tool_ids: tuple[ToolId, ...]
    message: str
    """One plain sentence that names the way out."""
    severity: Severity
    """error: these tools will not be found or distinguished; warning: they will often be missed; hint: worth a look."""


def quoted(value: str) -> str:
    """A name for a message: one line, printable, of bounded length."""
    line = " ".join(visible(clean(value)).split())
    return f"`{line if len(line) <= _MAX_NAME else line[: _MAX_NAME - 1] + '…'}`"


def listed(values: Iterable[str], max_shown: int = 4) -> str:
    """The first values quoted, and how many more there are."""
    distinct = list(dict.fromkeys(values))
    shown = ", ".join(quoted(value) for value in distinct[:max_shown])
    return shown if len(distinct) <= max_shown else f"{shown} and {len(distinct) - max_shown} more"


def ids(tools: Sequence[Tool]) -> tuple[ToolId, ...]:
    """Ids of tools."""
    return tuple(tool.id for tool in tools)
