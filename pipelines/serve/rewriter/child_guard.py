"""Run a command, and end it with all its children when the parent dies, also by kill -9.

    python child_guard.py COMMAND...

The command gets its own process group. Standard input ends when the parent dies; then the whole group is ended. When
the command itself ends, its leftover children are killed. Standard library only: this is run as a file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

GRACE_SECONDS = 10.0
"""Seconds between SIGTERM and SIGKILL."""


def main(command: Sequence[str]) -> int:
    """Run the command and return its exit code; 128 + N if signal N ended it."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which decides
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_wait_for_parent, args=(stop,), daemon=True).start()
    while child.poll() is None and not stop.wait(0.1):
        pass
    if child.poll() is None:
        _signal_group(child.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
    _signal_group(child.pid, signal.SIGKILL)
    code = child.wait()
    return 128 - code if code < 0 else code


def _wait_for_parent(stop: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    stop.set()


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # all have ended
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
