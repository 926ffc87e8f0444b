"""The process that reads large catalogues, started for the first one and ended when there were none for a while.

Reading 25,000 tools is most of a second of Python, and parsing their JSON a single call of 0.07 s. In the server all
other requests would share Python's lock with it.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from pipelines.serve.catalogue.reading import CatalogueText, read_text, write_answer
from pipelines.serve.errors import Refusal
from retrievers.index.tools import LiveTools

SMALL = 16_384
"""Characters of a catalogue that is read in the server itself: a process takes half a second to start."""
IDLE_SECONDS = 60.0
"""Time after which the process ends."""
MAX_SECONDS = 60.0
"""Time for one catalogue."""
COMMAND = (sys.executable, "-P", "-m", "pipelines.serve.catalogue.reading")
"""Without the working directory, whose files could hide Python's modules and ours."""
ROOT = str(Path(__file__).parents[3])
"""The folder that the packages are imported from."""
log = logging.getLogger("rewrite-serve")


class CatalogueReader:
    """Reads catalogues, one at a time. Its methods block, so call them in a thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: threading.Timer | None = None

    @property
    def is_running(self) -> bool:
        """True while there is a process."""
        return self._process is not None

    def read(self, text: CatalogueText, known: LiveTools) -> bytes:
        """The answer to a catalogue."""
        if len(text.document) <= SMALL:
            read = read_text(text)
            return write_answer(
                read, {tool.id: known[tool.id] for tool in read.tools if tool.id in known}, text.max_bytes
            )
        with self._lock:
            if self._is_closed:
                raise _unavailable("the server is stopping")
            if self._idle is not None:
                self._idle.cancel()
            try:
                return self._read_elsewhere(text, known)
            finally:
                self._idle = _start_timer(IDLE_SECONDS, self._end_idle)

    def close(self) -> None:
        """End the process for good. A read that it is at work on fails, and is not waited for."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            self._end()

    def _end_idle(self) -> None:
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        """The process, which is started unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*(path or ROOT for path in sys.path), ROOT])}
        try:
            self._process = subprocess.Popen(
                COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
            )
        except OSError as error:  # no memory, or too many processes
            log.error("the process that reads catalogues cannot be started: %s", error)
            raise _unavailable("the process that reads catalogues cannot be started") from error
        if self._is_closed:  # since the lock was taken; `close` may not have seen this process
            self._process.kill()
        return self._process

    def _read_elsewhere(self, text: CatalogueText, known: LiveTools) -> bytes:
        process, is_late = self._start(), threading.Event()

        def give_up() -> None:
            is_late.set()
            process.kill()

        timer = _start_timer(MAX_SECONDS, give_up)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            _write(process.stdin, asdict(text))
            ids = _read_head(process.stdout)["ids"]
            _write(process.stdin, [known.line(tool) for tool in ids if tool in known])
            size = int(_read_head(process.stdout)["size"])
            data = process.stdout.read(size)
            if len(data) < size:
                raise EOFError
            return data
        except (OSError, EOFError, ValueError) as error:  # ValueError: it was killed in the middle of a line
            self._end()
            if is_late.is_set():
                message = "the catalogue takes too long to read; send it in parts"
                raise Refusal(422, "too_slow", message) from error
            raise _unavailable("the process that reads catalogues has ended") from error
        finally:
            timer.cancel()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _unavailable(cause: str) -> Refusal:
    return Refusal(503, "unavailable", f"{cause}; try again")


def _start_timer(seconds: float, work: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, work)
    timer.daemon = True
    timer.start()
    return timer


def _write(stream: IO[bytes], value: dict[str, Any] | Sequence[str]) -> None:
    stream.write(json.dumps(value).encode() + b"\n")
    stream.flush()


def _read_head(stream: IO[bytes]) -> dict[str, Any]:
    """A line of the process; a refusal is raised."""
    head: dict[str, Any] = json.loads(stream.readline() or b"{}")
    if "refusal" in head:
        raise Refusal(*head["refusal"])
    if not head:
        raise EOFError
    return head
