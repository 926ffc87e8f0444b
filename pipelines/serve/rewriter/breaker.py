"""A circuit breaker: what fails again and again is left alone for a while, then tried once."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST = 30.0
"""Seconds that something is left alone at the most."""


class Breaker:
    """Closed: ask. Open: do not. Half open: one may try, and decides for all."""

    def __init__(self, failures: int = 5, first: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._first, self._clock = failures, first, clock
        self._row, self._opened, self._until, self._trying = 0, 0, 0.0, False
        self._ticket = 1
        """Another one since it last opened or closed: who has an older one asked before, and says nothing of now."""

    @property
    def state(self) -> str:
        """closed, open or half-open."""
        if not self._opened:
            return "closed"
        return "half-open" if self._clock() >= self._until else "open"

    def enter(self) -> int:
        """A ticket to ask now, 0 for none. Who has one says with it afterwards how it went."""
        if not self._opened:
            return self._ticket
        if self._trying or self._clock() < self._until:
            return 0
        self._trying = True
        return self._ticket

    def succeeded(self) -> None:
        """It works, and so it is asked."""
        if self._opened:
            self._ticket += 1
        self._row, self._opened, self._trying = 0, 0, False

    def failed(self, ticket: int) -> None:
        """It does not; after a few in a row it is left alone, each time for longer.

        Of many who wait when it hangs, the first few open the circuit; the others tell of the same trouble.
        """
        if ticket != self._ticket:
            return
        self._row += 1
        if self._trying or self._row >= self._most:
            self._until = self._clock() + min(LONGEST, self._first * 2**self._opened)
            self._opened += 1
            self._ticket += 1
        self._trying = False

    def undecided(self, ticket: int) -> None:
        """Nothing was learned: the caller has gone, or the trouble was with his utterance."""
        if ticket == self._ticket:
            self._trying = False
