"""Exit codes of our errors. 2: the request was wrong. 1: the work failed. 130: stopped on purpose."""

from __future__ import annotations

from retrievers.errors import (
    BadInput,
    IndexBroken,
    IndexBusy,
    IndexMissing,
    ModelMismatch,
    ModelMissing,
    OutOfDisk,
    OutOfMemory,
    ReadOnlyDisk,
)
from rewrite.errors import BackendDown, Interrupted, RewriteError

EXIT_CODES: dict[type[Exception], int] = {
    BadInput: 2,
    IndexMissing: 2,
    IndexBroken: 2,
    ModelMissing: 2,
    ModelMismatch: 2,
    OutOfDisk: 2,
    OutOfMemory: 2,
    ReadOnlyDisk: 2,
    RewriteError: 2,
    IndexBusy: 1,
    BackendDown: 1,
    Interrupted: 130,
    OSError: 1,
}


def exit_code(error: Exception) -> int | None:
    """Exit code of one of our errors or of a disk error. None means a bug, which deserves its traceback."""
    return next((EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES), None)


def error_line(error: Exception) -> str:
    """The error as one line for the terminal."""
    if type(error) not in EXIT_CODES and isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())
