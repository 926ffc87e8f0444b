"""Chance that is none: values drawn from a hash of what was asked, the same for the same question everywhere."""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeVar

T = TypeVar("T")


class Draw:
    """Draws for one call of one tool."""

    def __init__(self, tool: str, arguments: dict[str, Any]) -> None:
        self._seed, self._count = f"{tool}/{json.dumps(arguments, sort_keys=True)}", 0

    def whole(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        self._count += 1
        digest = hashlib.sha256(f"{self._seed}/{self._count}".encode()).digest()
        return low + int.from_bytes(digest[:6], "big") % (high - low + 1)

    def tenths(self, low: int, high: int) -> float:
        """A number with one decimal."""
        return self.whole(10 * low, 10 * high) / 10

    def pick(self, *choices: T) -> T:
        """One of several."""
        return choices[self.whole(0, len(choices) - 1)]

    def clock(self, first: int = 6, last: int = 22) -> str:
        """A time of day."""
        return f"{self.whole(first, last):02}:{self.pick('05', '10', '20', '30', '45', '55')}"

    def code(self, letters: str) -> str:
        """An identifier."""
        return f"{letters}-{self.whole(1000, 9999)}"
