"""Cache of a frozen retriever's rankings: the new texts of a step are searched in one call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from retrievers.types import Ranking
from reward.base import FrozenSearch
from reward.metrics import DEPTH

MAX_RANKINGS = 20_000
"""Rankings kept, those used last; about 4 kB each."""
TextKey = tuple[str, str]
"""A text, and the utterance for which it was written if its ranking depends on it."""


class RankingCache:
    """LRU cache of rankings by text, utterance and the retriever's fingerprint. Its failures are raised."""

    def __init__(self, retriever: FrozenSearch, depth: int = DEPTH, max_rankings: int = MAX_RANKINGS) -> None:
        self._retriever, self._depth, self._max_rankings = retriever, depth, max_rankings
        self._known: OrderedDict[tuple[str, TextKey], Ranking] = OrderedDict()
        self.calls = 0
        """Searches sent to the retriever."""

    def key(self, text: str, utterance: str) -> TextKey:
        """Key of a text that was written for an utterance."""
        return text, utterance if self._retriever.by_utterance else ""

    def __call__(self, keys: Iterable[TextKey]) -> dict[TextKey, Ranking]:
        """The ranking of every key."""
        fingerprint, wanted = self._retriever.fingerprint, dict.fromkeys(keys)
        new = [key for key in wanted if (fingerprint, key) not in self._known]
        rankings: dict[TextKey, Ranking] = {}
        if new:
            self.calls += 1
            texts, utterances = ([key[part] for key in new] for part in (0, 1))
            rankings = dict(zip(new, self._retriever.search(texts, self._depth, utterances), strict=True))
        for key in wanted:
            if key not in rankings:
                self._known.move_to_end((fingerprint, key))
                rankings[key] = self._known[fingerprint, key]
        for key in new:
            self._known[fingerprint, key] = rankings[key]
        while len(self._known) > self._max_rankings:
            self._known.popitem(last=False)
        return rankings

    def __getstate__(self) -> dict[str, Any]:
        """Pickles without the cached rankings."""
        return {**self.__dict__, "_known": OrderedDict(), "calls": 0}
