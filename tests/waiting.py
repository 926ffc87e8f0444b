"""Waiting for what another thread or process does: a busy machine may take its time, what never happens fails."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 90.0
"""Seconds that anything may take."""


def until(holds: Callable[[], object], pause: float = 0.02) -> float:
    """Waits until something holds; how many seconds that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < PATIENCE, "it does not happen"
        time.sleep(pause)
    return time.monotonic() - began
