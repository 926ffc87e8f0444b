"""What callers confirm, one line of JSON each, on the disk before they are thanked.

A line is written in one piece to the end of the day's file. Should the machine die in the midst of it, the torn line
is passed over by readers, and the next one begins on a line of its own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any


class FeedbackLog:
    """Appends to a folder of JSONL files, one a day."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._turn = folder, Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def append(self, record: dict[str, Any]) -> None:
        """Keeps one confirmation; it is on the disk when this returns."""
        line = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        path = self._folder / f"feedback-{time.strftime('%Y-%m-%d', time.gmtime())}.jsonl"
        with self._turn:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                size = os.fstat(handle).st_size
                torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
                _write_all(handle, b"\n" + line if torn else line)
                os.fsync(handle)
            finally:
                os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def read_feedback(folder: Path) -> Iterator[dict[str, Any]]:
    """Every whole record of a folder, oldest file first."""
    for path in sorted(folder.glob("feedback-*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # torn, or empty
            if isinstance(record, dict):
                yield record
