"""Vectors of tool documents: read from the database, or computed here to be stored in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrievers.base import VectorCache
from retrievers.dense.embeddings import text_key

VectorBytes = dict[tuple[str, bytes], bytes]
"""(model, document key) -> vector"""


class DatabaseVectors:
    """Vectors by model and document; `computed` counts those that the database did not have."""

    def __init__(self, known: VectorBytes) -> None:
        self.all, self.computed = known, 0

    def of_model(self, model: str) -> VectorCache:
        """The cache that an encoder of this model reads and fills."""
        return _ModelVectors(model, self)


class _ModelVectors:
    def __init__(self, model: str, vectors: DatabaseVectors) -> None:
        self._model, self._vectors = model, vectors

    def get(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        known = {text: self._vectors.all.get((self._model, text_key(text))) for text in texts}
        return {text: np.frombuffer(data, "<f4") for text, data in known.items() if data is not None}

    def put(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        self._vectors.computed += len(texts)
        for text, vector in zip(texts, vectors.astype("<f4"), strict=True):
            self._vectors.all[self._model, text_key(text)] = vector.tobytes()
