"""What a frozen retriever finds, asked once: all that is new in a step goes out in one call, the rest is remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from retrievers.base import Retriever
from retrievers.types import Ranking
from reward.metrics import DEPTH

MOST = 20_000
"""Lists remembered, the latest asked for; about 4 kB each."""


class RankingCache:
    """Rankings by text, remembered with the fingerprint of the retriever that gave them. A failure passes through."""

    def __init__(self, retriever: Retriever, depth: int = DEPTH, most: int = MOST) -> None:
        self._retriever, self._depth, self._most = retriever, depth, most
        self._known: OrderedDict[tuple[str, str], Ranking] = OrderedDict()
        self.calls = 0
        """How often the retriever was asked."""

    def __call__(self, texts: Iterable[str]) -> dict[str, Ranking]:
        """The ranking of every text."""
        mark, wanted = self._retriever.fingerprint, dict.fromkeys(texts)
        new = [text for text in wanted if (mark, text) not in self._known]
        found: dict[str, Ranking] = {}
        if new:
            self.calls += 1
            found = dict(zip(new, self._retriever.search(new, self._depth), strict=True))
        for text in wanted:
            if text not in found:
                self._known.move_to_end((mark, text))
                found[text] = self._known[mark, text]
        for text in new:
            self._known[mark, text] = found[text]
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Another process begins with nothing remembered."""
        return {**self.__dict__, "_known": OrderedDict(), "calls": 0}
