"""A fusion of other retrievers of the same index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from retrievers.base import Retriever, remembers
from retrievers.fusion import DEPTH, fuse
from retrievers.kind import Arrays, Block, Context
from retrievers.rows import Rows
from retrievers.settings import FusionSettings, HybridSettings
from retrievers.types import Ranking


class HybridKind:
    """Stores nothing of its own."""

    def __init__(self, settings: HybridSettings, context: Context, trained: Path | None = None) -> None:
        self._settings = settings

    def identity(self) -> dict[str, str]:
        return {}

    def rows(self, documents: Sequence[str]) -> Arrays:
        return {}

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        return {}

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        return Hybrid([other(name) for name in self._settings.of], self._settings.fusion, fingerprint)


class Hybrid:
    """Searches with every part and fuses their rankings."""

    def __init__(self, parts: Sequence[Retriever], fusion: FusionSettings, fingerprint: str) -> None:
        self._parts, self._fusion, self.fingerprint = parts, fusion, fingerprint

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        return self._fuse([part.search(queries, max(k, DEPTH)) for part in self._parts], k)

    @property
    def remembers_queries(self) -> bool:
        return any(map(remembers, self._parts))

    def learned(self, utterances: Sequence[str]) -> list[bool]:
        rows = [part.learned(utterances) for part in self._parts if remembers(part)]
        return [any(row) for row in zip(*rows, strict=True)] if rows else [False] * len(utterances)

    def search_held_out(self, texts: Sequence[str], k: int, utterances: Sequence[str]) -> list[Ranking]:
        depth = max(k, DEPTH)
        return self._fuse(
            [
                part.search_held_out(texts, depth, utterances) if remembers(part) else part.search(texts, depth)
                for part in self._parts
            ],
            k,
        )

    def _fuse(self, rankings: Sequence[Sequence[Ranking]], k: int) -> list[Ranking]:
        return [fuse(lists, k, self._fusion) for lists in zip(*rankings, strict=True)]
