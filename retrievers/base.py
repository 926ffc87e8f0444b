"""Interfaces of retrieval: a retriever, a vector cache, a detector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from retrievers.types import Ranking

FindModel = Callable[[str], Path]
"""Turns a model reference (`bundled:…`, a folder, a Hugging Face id) into a folder on this machine."""


class Retriever(Protocol):
    """Ranks tools for queries; does not change once opened."""

    @property
    def fingerprint(self) -> str:
        """Name of the exact index that is searched."""

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """One ranking per query, at most k tools each; none for an empty query."""


class VectorCache(Protocol):
    """Vectors of one model by their texts, so that no text is embedded twice."""

    def get(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """The vectors of the known texts."""

    def put(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Store vectors."""


@runtime_checkable
class Detector(Protocol):
    """Estimates which queries need a tool."""

    @property
    def threshold(self) -> float:
        """Probability from which on a tool is needed; chosen on dev."""

    def probabilities(self, queries: Sequence[str]) -> list[float]:
        """Probability that each query needs a tool."""
