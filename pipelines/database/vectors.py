"""The vectors of a catalogue's documents, as they come from the database and as they are made for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrievers.base import VectorCache
from retrievers.dense.embeddings import text_key

Stored = dict[tuple[str, bytes], bytes]
"""(model, document) -> vector"""


class Vectors:
    """Vectors of any number of models, those that are known and those that have to be made here."""

    def __init__(self, known: Stored | None = None) -> None:
        self.all: Stored = known or {}
        self.made = 0
        """How many had to be made here."""

    def of(self, model: str) -> VectorCache:
        """One model's."""
        return _OfModel(model, self)


class _OfModel:
    def __init__(self, model: str, vectors: Vectors) -> None:
        self._model, self._vectors = model, vectors

    def get(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        found = {text: self._vectors.all.get((self._model, text_key(text))) for text in texts}
        return {text: np.frombuffer(data, "<f4") for text, data in found.items() if data is not None}

    def put(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        self._vectors.made += len(texts)
        for text, vector in zip(texts, vectors.astype("<f4"), strict=True):
            self._vectors.all[self._model, text_key(text)] = vector.tobytes()
