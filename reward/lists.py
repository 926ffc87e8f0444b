"""Cache of a frozen retriever's rankings: the new texts of a step are searched in one call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from retrievers.base import Retriever
from retrievers.types import Ranking
from reward.metrics import DEPTH

MAX_RANKINGS = 20_000
"""Rankings kept, those used last; about 4 kB each."""


class RankingCache:
    """LRU cache of rankings by text and the retriever's fingerprint. Failures of the retriever are raised."""

    def __init__(self, retriever: Retriever, depth: int = DEPTH, max_rankings: int = MAX_RANKINGS) -> None:
        self._retriever, self._depth, self._max_rankings = retriever, depth, max_rankings
        self._known: OrderedDict[tuple[str, str], Ranking] = OrderedDict()
        self.calls = 0
        """Searches sent to the retriever."""

    def __call__(self, texts: Iterable[str]) -> dict[str, Ranking]:
        """The ranking of every text."""
        fingerprint, wanted = self._retriever.fingerprint, dict.fromkeys(texts)
        new = [text for text in wanted if (fingerprint, text) not in self._known]
        rankings: dict[str, Ranking] = {}
        if new:
            self.calls += 1
            rankings = dict(zip(new, self._retriever.search(new, self._depth), strict=True))
        for text in wanted:
            if text not in rankings:
                self._known.move_to_end((fingerprint, text))
                rankings[text] = self._known[fingerprint, text]
        for text in new:
            self._known[fingerprint, text] = rankings[text]
        while len(self._known) > self._max_rankings:
            self._known.popitem(last=False)
        return rankings

    def __getstate__(self) -> dict[str, Any]:
        """Pickles without the cached rankings."""
        return {**self.__dict__, "_known": OrderedDict(), "calls": 0}
