"""The log is written beside the requests: complete, in order, and never in their way."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from waiting import until

from pipelines.serve import log_writer
from pipelines.serve.log_writer import LogWriter

LOG = logging.getLogger("test-log-writer")
LOG.propagate = False


@contextmanager
def written(stream: io.StringIO) -> Iterator[LogWriter]:
    handler = LogWriter(stream)
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        LOG.removeHandler(handler)
        handler.close()


class StuckStream(io.StringIO):
    """It is not read until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.is_stuck = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.is_stuck.set()
        self.go.wait()
        return super().write(text)


def test_lines_come_soon_in_order_and_whole() -> None:
    stream = io.StringIO()
    with written(stream):
        for number in range(1000):
            LOG.info("line %d", number)
        until(lambda: stream.getvalue().endswith("line 999\n"))
    assert stream.getvalue().splitlines() == [f"line {number}" for number in range(1000)]


def test_the_last_lines_are_written_at_the_end_of_a_process() -> None:
    code = (
        "import logging, sys; from pipelines.serve.log_writer import LogWriter; "
        "logging.basicConfig(level=logging.INFO, handlers=[LogWriter(sys.stderr)]); "
        "[logging.info('line %d', number) for number in range(100)]; sys.exit(3)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 3
    assert ended.stderr.splitlines()[-1].endswith("line 99")
    assert len(ended.stderr.splitlines()) == 100


def test_a_reader_that_stands_still_stops_no_caller_and_loses_the_oldest() -> None:
    stream = StuckStream()
    with written(stream):
        LOG.info("first")
        stream.is_stuck.wait()
        for number in range(log_writer.MAX_LINES + 7):
            LOG.info("line %d", number)
        stream.go.set()
    lines = stream.getvalue().splitlines()
    assert lines[:3] == ["first", "7 lines of the log are lost: they were not read in time", "line 7"]
    assert lines[-1] == f"line {log_writer.MAX_LINES + 6}"


def test_a_long_line_is_cut() -> None:
    stream = io.StringIO()
    with written(stream):
        LOG.info("a" * 3 * log_writer.MAX_CHARACTERS)
        LOG.info("next")
    assert stream.getvalue().splitlines() == ["a" * log_writer.MAX_CHARACTERS, "next"]
