"""Memory that ran out while something was loaded: told as that, lest a sound folder is taken for a damaged one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retrievers.errors import OutOfMemory

SIGNS = ("out of memory", "allocate memory", "not enough memory")
"""How torch (of a GPU, of the machine), safetensors and the system say it, each by an error of another kind."""
SHOWN = 120
"""Characters of what they say; advice about torch follows."""


@contextmanager
def enough_memory(place: Path) -> Iterator[None]:
    """For whatever loads a folder or a file; other trouble passes as it is."""
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        raise OutOfMemory(
            f"memory ran out while {place} was loaded ({in_short(error)}); "
            "free some, name another --device, such as cpu, or take a smaller model"
        ) from error


def is_full(error: Exception) -> bool:
    """True where memory ran out, a GPU's or the machine's."""
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in SIGNS)


def in_short(error: Exception) -> str:
    """What was said of it, in one line."""
    return " ".join(str(error).split())[:SHOWN] or type(error).__name__
