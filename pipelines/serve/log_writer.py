"""Writes the log in a thread of its own: a write to a slow terminal or pipe, and the wait for Python's lock after it,
holds up no request."""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import suppress
from typing import TextIO

SECONDS = 0.05
"""Lines of so long are written together."""
PATIENCE = 1.0
"""Seconds that the end of a process waits for a reader of its log."""
MAX_LINES = 10_000
"""Lines that wait for a reader that stands still; of more, the oldest are lost."""
MAX_CHARACTERS = 10_000
"""Of a line with its traceback; callers write into it, by the path that they ask for."""


class LogWriter(logging.Handler):
    """Formats a record at once, and writes it up to 50 ms later, or when the process ends."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._num_lost = 0
        self._filled, self._closed = threading.Event(), threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._write_on, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line for the thread."""
        try:
            line = self.format(record)[:MAX_CHARACTERS]
        except Exception:  # as other handlers of the library do: a wrong message ends no request
            self.handleError(record)
            return
        self._num_lost += len(self._lines) == MAX_LINES
        self._lines.append(line)
        if not self._filled.is_set():
            self._filled.set()

    def flush(self) -> None:
        """Write all lines that wait, unless the reader stands still."""
        if not self._writing.acquire(timeout=PATIENCE):
            return
        try:
            self._filled.clear()
            self._write(self._take_lines())
        finally:
            self._writing.release()

    def close(self) -> None:
        """Write the rest, and end the thread."""
        self._closed.set()
        self._filled.set()
        self._thread.join(PATIENCE)
        self.flush()
        super().close()

    def _take_lines(self) -> list[str]:
        lost, self._num_lost = self._num_lost, 0
        lines = [f"{lost} lines of the log are lost: they were not read in time"] if lost else []
        with suppress(IndexError):
            while True:
                lines.append(self._lines.popleft())
        return lines

    def _write(self, lines: list[str]) -> None:
        if lines:
            with suppress(OSError, ValueError):  # the reader of the pipe is gone, or the stream is closed
                self._stream.write("\n".join(lines) + "\n")
                self._stream.flush()

    def _write_on(self) -> None:
        while not self._closed.is_set():
            self._filled.wait()
            self._closed.wait(SECONDS)
            self.flush()
