"""The two things the rest of the house asks of this room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from retrievers.types import Ranking

FindModel = Callable[[str], Path]
"""Turns a model reference (`bundled:…`, a folder, a Hugging Face id) into a folder on this machine."""


class Retriever(Protocol):
    """Ranks tools for text it may never have seen; frozen once opened."""

    @property
    def fingerprint(self) -> str:
        """Names the exact index this retriever answers from."""
        ...

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """One ranking a query, at most k places each; an empty query finds nothing."""
        ...


class VectorCache(Protocol):
    """Vectors of one model by their texts, so that nothing is embedded twice."""

    def get(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """The vectors of the texts that are known."""
        ...

    def put(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Remembers vectors."""
        ...


@runtime_checkable
class Detector(Protocol):
    """Says which queries need a tool at all."""

    @property
    def threshold(self) -> float:
        """From this probability on a tool is needed; chosen on dev."""
        ...

    def probabilities(self, queries: Sequence[str]) -> list[float]:
        """How likely each query needs a tool."""
        ...
