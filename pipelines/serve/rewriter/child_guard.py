"""Runs a command and sees to it that nothing of it outlives whoever started this: not by kill -9 either.

    python child_guard.py COMMAND...

The command gets a process group of its own. When standard input ends, which it does when the parent dies however it
dies, the whole group is ended; when the command ends, what it left behind is. Stdlib only: this is run as a file.
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

PATIENCE = 10.0
"""Seconds between asking and killing."""


def main(command: Sequence[str]) -> int:
    """The command's exit code; 128 + N where signal N ended it."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which says when
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_until_the_parent_is_gone, args=(stop,), daemon=True).start()
    while child.poll() is None and not stop.wait(0.1):
        pass
    if child.poll() is None:
        _signal(child.pid, signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
    _signal(child.pid, signal.SIGKILL)
    code = child.wait()
    return 128 - code if code < 0 else code


def _until_the_parent_is_gone(stop: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    stop.set()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # nobody is left
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
