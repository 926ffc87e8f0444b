"""Circuit breaker: stop calling a model that keeps failing, then try it once after a pause."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_PAUSE = 30.0
"""Longest pause in seconds."""


class Breaker:
    """Closed: call. Open: do not call. Half open: one call may try, and decides for all."""

    def __init__(
        self, max_failures: int = 5, first_pause: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_failures, self._first_pause, self._clock = max_failures, first_pause, clock
        self._failures, self._times_opened, self._open_until, self._trying = 0, 0, 0.0, False
        self._ticket = 1
        """Changes whenever the circuit opens or closes: a call with an older ticket says nothing about now."""

    @property
    def state(self) -> str:
        """closed, open or half-open."""
        if not self._times_opened:
            return "closed"
        return "half-open" if self._clock() >= self._open_until else "open"

    def enter(self) -> int:
        """A ticket for one call, 0 if none is allowed. The outcome is reported with the ticket."""
        if not self._times_opened:
            return self._ticket
        if self._trying or self._clock() < self._open_until:
            return 0
        self._trying = True
        return self._ticket

    def succeeded(self) -> None:
        """Close the circuit."""
        if self._times_opened:
            self._ticket += 1
        self._failures, self._times_opened, self._trying = 0, 0, False

    def failed(self, ticket: int) -> None:
        """Count a failure; after several in a row open the circuit, each time for longer.

        When a model hangs, the first waiting calls open the circuit; the others report the same failure.
        """
        if ticket != self._ticket:
            return
        self._failures += 1
        if self._trying or self._failures >= self._max_failures:
            self._open_until = self._clock() + min(MAX_PAUSE, self._first_pause * 2**self._times_opened)
            self._times_opened += 1
            self._ticket += 1
        self._trying = False

    def undecided(self, ticket: int) -> None:
        """The call says nothing about the model: the caller left, or the utterance was at fault."""
        if ticket == self._ticket:
            self._trying = False
