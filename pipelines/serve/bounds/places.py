"""Places that a caller gets at once or not at all."""

from __future__ import annotations

from collections import Counter

from pipelines.serve.bounds.fairness import SHARE, ActiveCallers


class FairPlaces:
    """A number of places. While others are active, a caller has at most a quarter; and the last quarter is for callers
    that have few, so that several who take all they can leave some to another."""

    def __init__(self, total: int) -> None:
        self._total, self._reserve = total, total // SHARE
        self.taken = 0
        """Places that are taken."""
        self._by_caller: Counter[str] = Counter()
        self._active = ActiveCallers()

    def take(self, caller: str) -> bool:
        """Take a place; False if the caller may have no other."""
        self._active.note(caller)
        own = self._by_caller.get(caller, 0)
        has_few = own < max(1, self._reserve // (len(self._by_caller) + 1))
        limit = self._total if has_few else self._total - self._reserve
        if self.taken >= limit or own >= min(self._total - self._reserve, self._active.share(caller, self._total)):
            return False
        self._by_caller[caller] += 1
        self.taken += 1
        return True

    def leave(self, caller: str) -> None:
        """Give a place back."""
        self.taken -= 1
        self._by_caller[caller] -= 1
        if not self._by_caller[caller]:
            del self._by_caller[caller]
