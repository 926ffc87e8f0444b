"""Progress of long work on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from tqdm import tqdm

LINE_SECONDS = 10.0
"""Seconds between two lines in a log."""
BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"


class Progress:
    """Counts finished items of one stage, and shows the rate and the remaining time."""

    def __init__(
        self, stage: str, total: int, unit: str, show: bool, done: int = 0, effort: float | None = None
    ) -> None:
        """`done`: items of an earlier run. `effort`: of all items together, where they take unequal time."""
        self._stage, self._total, self._unit, self._first = stage, total, unit, done
        self._done, self._effort, self._total_effort = done, 0.0, float(total - done) if effort is None else effort
        self._started = self._logged = time.monotonic()
        # No bar rather than a disabled one: tqdm takes a lock even for that, which a killed process may hold for ever.
        self._bar: Any = None
        self._lines = False
        if show and total > done:
            self._lines = not sys.stderr.isatty()
            if self._lines:
                say(f"{stage}: {total - done:,} {unit}", show)
            else:
                self._bar = tqdm(total=total, initial=done, desc=stage, bar_format=BAR, dynamic_ncols=True)

    def add(self, count: int = 1, note: str = "", effort: float | None = None) -> None:
        """Count finished items; `note` is shown beside them."""
        self._done += count
        self._effort += count if effort is None else effort
        if self._bar is not None:
            self._bar.set_postfix_str(self._text(note), refresh=False)
            self._bar.update(count)
        elif self._lines and time.monotonic() - self._logged >= LINE_SECONDS:
            self._logged = time.monotonic()
            say(f"{self._stage}: {self._done:,} of {self._total:,} {self._unit}, {self._text(note)}", True)

    def _text(self, note: str) -> str:
        seconds = max(time.monotonic() - self._started, 1e-9)
        left = seconds * max(0.0, self._total_effort - self._effort) / max(self._effort, 1e-9)
        rate = (self._done - self._first) / seconds
        return ", ".join(part for part in (f"{rate:,.3g} {self._unit}/s", f"{duration(left)} left", note) if part)

    def close(self) -> None:
        """End the bar, or say in a log how long the stage took if that was long."""
        if self._bar is not None:
            self._bar.close()
        elif self._lines and (seconds := time.monotonic() - self._started) >= LINE_SECONDS:
            say(f"{self._stage}: done in {duration(seconds)}", True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._bar is not None:
            self._bar.close()


def say(text: str, show: bool) -> None:
    """Write a line to standard error, if progress is shown."""
    if show:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def duration(seconds: float) -> str:
    """Seconds for people: 40 s, 13 min, 2.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
