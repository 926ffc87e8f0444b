"""A cache of scores: the answers of one training step lead to lists that share most of their tools."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from retrievers.base import Reranker

MAX_PAIRS = 500_000
"""Scores kept, those used last; about 200 bytes each, beside texts that are held anyway."""


class CachedReranker:
    """Asks another reranker about new pairs of request and tool only."""

    def __init__(self, model: Reranker, max_pairs: int = MAX_PAIRS) -> None:
        self._model, self._max_pairs = model, max_pairs
        self._known: OrderedDict[tuple[str, str], float] = OrderedDict()
        self.fingerprint = model.fingerprint

    def score(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Scores as the model gives them; all new pairs of a request are read together."""
        new: dict[str, dict[str, None]] = {}
        for query, texts in zip(queries, documents, strict=True):
            for text in texts:
                if (query, text) in self._known:
                    self._known.move_to_end((query, text))
                else:
                    new.setdefault(query, {})[text] = None
        fresh = [list(texts) for texts in new.values()]
        for query, texts, values in zip(new, fresh, self._model.score(list(new), fresh), strict=True):
            self._known.update(zip(((query, text) for text in texts), values.tolist(), strict=True))
        scores = [
            np.array([self._known[query, text] for text in texts])
            for query, texts in zip(queries, documents, strict=True)
        ]
        while len(self._known) > self._max_pairs:
            self._known.popitem(last=False)
        return scores
