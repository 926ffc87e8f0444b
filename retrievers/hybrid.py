"""A fusion of other retrievers of the same index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from retrievers.base import ComparableScores, Retriever, remembers
from retrievers.fusion import DEPTH, add_scores, fuse
from retrievers.kind import Arrays, Block, Context
from retrievers.language.english import is_english
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
        parts = {name: other(name) for name in self._settings.of}
        return Hybrid(parts, self._settings.fusion, fingerprint, self._settings.english_only)


class Hybrid:
    """Searches with every part that reads the query's language and fuses their rankings."""

    def __init__(
        self,
        parts: Mapping[str, Retriever],
        fusion: FusionSettings | None,
        fingerprint: str,
        english_only: Collection[str] = (),
    ) -> None:
        self._parts, self._fusion, self.fingerprint = list(parts.values()), fusion, fingerprint
        self._units = None if fusion else _score_units(self._parts)
        self._english_only = [name in english_only for name in parts]

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        def search(part: Retriever, read: Sequence[int], depth: int) -> list[Ranking]:
            return part.search([queries[index] for index in read], depth)

        return self._search(queries, k, search)

    @property
    def remembers_queries(self) -> bool:
        return any(map(remembers, self._parts))

    def learned(self, utterances: Sequence[str]) -> list[bool]:
        rows = [part.learned(utterances) for part in self._parts if remembers(part)]
        return [any(row) for row in zip(*rows, strict=True)] if rows else [False] * len(utterances)

    def search_held_out(self, texts: Sequence[str], k: int, utterances: Sequence[str]) -> list[Ranking]:
        def search(part: Retriever, read: Sequence[int], depth: int) -> list[Ranking]:
            own = [texts[index] for index in read]
            if not remembers(part):
                return part.search(own, depth)
            return part.search_held_out(own, depth, [utterances[index] for index in read])

        return self._search(texts, k, search)

    def _search(
        self, texts: Sequence[str], k: int, search: Callable[[Retriever, Sequence[int], int], list[Ranking]]
    ) -> list[Ranking]:
        """Search with every part, but only the texts that it reads, and fuse."""
        everything = range(len(texts))
        english = [index for index in everything if is_english(texts[index])] if any(self._english_only) else []
        lists = []
        for part, english_only in zip(self._parts, self._english_only, strict=True):
            read = english if english_only else everything
            rankings = [Ranking()] * len(texts)
            for index, ranking in zip(read, search(part, read, max(k, DEPTH)) if read else (), strict=True):
                rankings[index] = ranking
            lists.append(rankings)
        return [self.fuse(rankings, k) for rankings in zip(*lists, strict=True)]

    def fuse(self, rankings: Sequence[Ranking], k: int) -> Ranking:
        """Fuse the rankings of the parts for one query."""
        if self._units:
            fused = add_scores(rankings, k, self._units)
        else:
            fused = fuse(rankings, k, self._fusion or FusionSettings())
        return replace(fused, parts=tuple(rankings))


def _score_units(parts: Sequence[Retriever]) -> list[float] | None:
    """Units in which the scores of the parts are added; None if they do not compare, as those of two encoders."""
    units = [part.score_unit for part in parts if isinstance(part, ComparableScores)]
    return units if len(set(units)) == len(parts) else None
