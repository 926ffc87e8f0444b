"""Feedback log: one line of JSON per record, on disk before the caller gets an answer.

A record is appended in one write to the day's file. If the machine dies during it, readers skip the torn line, and the
next record starts on a new line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol


class FeedbackStore(Protocol):
    """Stores feedback: a folder, or the shared database."""

    def append(self, record: dict[str, Any]) -> None:
        """Store a record; it is safe when this returns."""
        ...

    def read_new(self) -> Sequence[dict[str, Any]]:
        """Records in a shared database since the last time, also those of other servers."""
        ...


class FeedbackLog:
    """Appends to a folder of JSONL files, one per day."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        path = self._folder / f"feedback-{time.strftime('%Y-%m-%d', time.gmtime())}.jsonl"
        with self._lock:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                size = os.fstat(handle).st_size
                torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
                data = b"\n" + line if torn else line
                while data:
                    data = data[os.write(handle, data) :]
                os.fsync(handle)
            finally:
                os.close(handle)

    def read_new(self) -> Sequence[dict[str, Any]]:
        """None: uses are counted from the files, beside those of calls."""
        return ()


def read_feedback(folder: Path) -> Iterator[dict[str, Any]]:
    """All complete records of a folder, oldest file first."""
    for path in sorted(folder.glob("feedback-*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # torn, or empty
            if isinstance(record, dict):
                yield record
