"""How far a job is: a bar where somebody looks, else a line now and then."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm

EVERY = 30.0
"""Seconds between two lines."""


class Progress:
    """Counts rows."""

    def __init__(self, total: int, done: int, show: bool | None = None) -> None:
        """`show`: True a bar, False nothing; None a bar on a terminal and lines elsewhere."""
        self._bar: Any = None
        looked_at = sys.stderr.isatty() if show is None else show
        if looked_at:
            self._bar = tqdm(total=max(total, done), initial=done, unit="row", smoothing=0.1, dynamic_ncols=True)
        self._tell = show is None and not looked_at
        self._total, self._done, self._new = total, done, 0
        self._started = self._told = time.monotonic()

    @property
    def rate(self) -> float:
        """Rows a second since the start."""
        return self._new / max(time.monotonic() - self._started, 1e-9)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._started

    def add(self, rows: int, bad: int) -> None:
        """More rows are done."""
        self._done += rows
        self._new += rows
        if self._bar is not None:
            self._bar.update(rows)
            self._bar.set_postfix_str(f"{bad} bad" if bad else "", refresh=False)
        elif self._tell and time.monotonic() - self._told >= EVERY:
            self._told = time.monotonic()
            left = max(0, self._total - self._done) / max(self.rate, 1e-9)
            sys.stderr.write(
                f"{self._done:,} of about {self._total:,} rows, {self.rate:,.1f} rows/s, {_spoken(left)} left"
                + (f", {bad:,} bad\n" if bad else "\n")
            )
            sys.stderr.flush()

    def close(self) -> None:
        """Clears the bar."""
        if self._bar is not None:
            self._bar.close()


def _spoken(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
