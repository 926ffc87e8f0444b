"""Find the cause of vLLM's end in its log, and tell causes that another start may cure from those that stay."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import NamedTuple

MAX_BYTES = 200_000
"""Bytes of the end of a log that are read."""
MAX_CHARACTERS = 400
_PREFIX = re.compile(r"^\([^)]* pid=\d+\) (?:ERROR|CRITICAL) \S+ \S+ \[[^\]]*\] ?")
_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception))(?:: (.*))?$")
_USAGE = re.compile(r"^\S+\.py: error: (.*)$")
_WRAPPERS = ("root cause", "initialization failed", "EngineDeadError")
"""Errors of one process about another one, which has logged its own."""
_PERMANENT = {
    "AttributeError", "FileNotFoundError", "HFValidationError", "ImportError", "KeyError", "MemoryError",
    "ModuleNotFoundError", "NotImplementedError", "OutOfMemoryError", "PermissionError", "SafetensorError",
    "TypeError", "ValidationError", "ValueError",
}  # fmt: skip
"""Errors about memory, the model or an argument, which the next start would meet again."""


class Failure(NamedTuple):
    """The end of a process."""

    cause: str
    permanent: bool = False
    """The next start would fail in the same way."""


def read_failure(log: Path, code: int) -> Failure:
    """The failure of a process that ended with this code, by the last error in its log that is no wrapper."""
    with log.open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - MAX_BYTES))
        failure = find_error(stream.read().decode("utf-8", "replace"))
    if failure is not None:
        return failure
    if code == 128 + signal.SIGKILL:
        return Failure("it was killed, as the system does when memory runs out")
    return Failure(f"it ended with code {code}")


def find_error(text: str) -> Failure | None:
    """The last error of a log that is not about another error; None without one."""
    lines = [_PREFIX.sub("", line) for line in text.splitlines()]
    for index in range(len(lines) - 1, -1, -1):
        if usage := _USAGE.match(lines[index]):
            return Failure(_shorten(usage[1]), True)
        error = _ERROR.match(lines[index])
        if error is None or any(wrapper in lines[index] for wrapper in _WRAPPERS):
            continue
        message = error[2] or ""
        if error[1] == "ValidationError":  # the first line counts the errors, the next ones name them
            message = " ".join(lines[index + 1 : index + 2])
        memory = "out of memory" in message.lower()
        return Failure(_shorten(f"{error[1]}: {message}"), memory or error[1] in _PERMANENT)
    return None


def _shorten(text: str) -> str:
    line = " ".join(text.split()).rstrip(". ")
    return line if len(line) <= MAX_CHARACTERS else f"{line[:MAX_CHARACTERS]} …"
