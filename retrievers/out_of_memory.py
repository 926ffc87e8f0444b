"""Reports memory that ran out while a model was loaded as such, not as a damaged folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retrievers.errors import OutOfMemory

SIGNS = ("out of memory", "allocate memory", "not enough memory")
"""Wordings of torch (GPU and CPU), safetensors and the system, each in an error of another type."""
MAX_CHARACTERS = 120  # of an error's text; torch adds advice after that


@contextmanager
def report_out_of_memory(path: Path) -> Iterator[None]:
    """Raise OutOfMemory where loading a folder or file runs out of memory; other errors pass unchanged."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"memory ran out while {path} was loaded ({shorten(error)}); "
            "free some, name another --device, such as cpu, or take a smaller model"
        ) from error


def is_out_of_memory(error: Exception) -> bool:
    """True where the GPU's or the machine's memory ran out."""
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in SIGNS)


def shorten(error: Exception) -> str:
    """An error's text in one short line."""
    return " ".join(str(error).split())[:MAX_CHARACTERS] or type(error).__name__
