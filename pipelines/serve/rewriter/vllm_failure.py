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
    "AttributeError", "FileNotFoundError", "HFValidationError", "ImportError", "KeyError", "ModuleNotFoundError",
    "NotImplementedError", "PermissionError", "SafetensorError", "TypeError", "ValidationError", "ValueError",
}  # fmt: skip
"""Errors about the model or an argument, which the next start would meet again."""
_MEMORY = re.compile(r"\bmemory\b|OutOfMemoryError|MemoryError", re.IGNORECASE)
"""In errors about memory, which another process may free soon; names of options (gpu_memory_utilization) are none."""


class Failure(NamedTuple):
    """The end of a process."""

    cause: str
    permanent: bool = False
    """The next start would fail in the same way."""
    memory: bool = False
    """Memory was short, perhaps only until an earlier vLLM has ended."""


def read_failure(log: Path, code: int) -> Failure:
    """The failure of a process that ended with this code, by the last error in its log that is no wrapper.

    A process that was killed cannot log the reason: errors in its log are older, and it survived them.
    """
    if code in (128 + signal.SIGKILL, -signal.SIGKILL):
        return Failure("it was killed, as the system does when memory runs out", memory=True)
    return find_error(_read_end(log)) or Failure(f"it ended with code {code}")


def _read_end(log: Path) -> str:
    """The end of a log; nothing if it was deleted or cannot be read."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - MAX_BYTES))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""


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
        cause = f"{error[1]}: {message}"
        memory = error[1] != "ValidationError" and _MEMORY.search(cause) is not None
        return Failure(_shorten(cause), error[1] in _PERMANENT and not memory, memory)
    return None


def _shorten(text: str) -> str:
    line = " ".join(text.split()).rstrip(". ")
    return line if len(line) <= MAX_CHARACTERS else f"{line[:MAX_CHARACTERS]} …"
