"""Waiting for what another thread or process does: a busy machine may take its time, what never happens fails."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

PATIENCE = 90.0
"""Seconds that anything may take."""


def until(holds: Callable[[], object], pause: float = 0.02, *, patience: float = PATIENCE) -> float:
    """Waits until something holds, with a pause between looks; how many seconds that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < patience, "it does not happen"
        time.sleep(pause)
    return time.monotonic() - began


def listens(port: int) -> bool:
    """True if a server listens on that port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
