"""A fusion of other retrievers of the same index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from retrievers.base import ComparableScores, HasParts, RankingParts, Retriever, adds_votes, remembers
from retrievers.errors import BadInput
from retrievers.fusion import DEPTH, fuse
from retrievers.kind import Arrays, Block, Context
from retrievers.language.english import is_english
from retrievers.rows import Rows
from retrievers.settings import FusionSettings, HybridSettings
from retrievers.types import Ranking

PartSearch = Callable[[Retriever, Sequence[int], int], list[Ranking]]
"""A retriever, the numbers of the texts it is asked about, and how many tools it should find."""


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
        settings = self._settings
        parts = {name: other(name) for name in settings.of}
        others = {name: parts.get(name) or other(name) for name in settings.other_languages}
        return Hybrid(parts, settings.fusion, fingerprint, others)


class Hybrid:
    """Searches with every part and fuses their rankings; other parts may be asked about texts that are not English."""

    def __init__(
        self,
        parts: Mapping[str, Retriever],
        fusion: FusionSettings | None,
        fingerprint: str,
        other_languages: Mapping[str, Retriever] | None = None,
    ) -> None:
        self.fingerprint = fingerprint
        self._fused = _FusedParts(parts, fusion)
        self._others = _FusedParts(other_languages, None) if other_languages else None

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        def search(part: Retriever, read: Sequence[int], depth: int) -> list[Ranking]:
            return part.search([queries[index] for index in read], depth)

        return self._search(queries, k, search)

    @property
    def remembers_queries(self) -> bool:
        return any(map(remembers, self._all_parts()))

    def learned(self, utterances: Sequence[str]) -> list[bool]:
        rows = [part.learned(utterances) for part in self._all_parts() if remembers(part)]
        return [any(row) for row in zip(*rows, strict=True)] if rows else [False] * len(utterances)

    def search_held_out(self, texts: Sequence[str], k: int, utterances: Sequence[str]) -> list[Ranking]:
        def search(part: Retriever, read: Sequence[int], depth: int) -> list[Ranking]:
            own = [texts[index] for index in read]
            if not remembers(part):
                return part.search(own, depth)
            return part.search_held_out(own, depth, [utterances[index] for index in read])

        return self._search(texts, k, search)

    @property
    def has_votes(self) -> bool:
        return any(map(adds_votes, self._all_parts()))

    def search_without_votes(self, queries: Sequence[str], k: int) -> list[Ranking]:
        def search(part: Retriever, read: Sequence[int], depth: int) -> list[Ranking]:
            own = [queries[index] for index in read]
            return part.search_without_votes(own, depth) if adds_votes(part) else part.search(own, depth)

        return self._search(queries, k, search)

    def ranking_parts(self, query: str, k: int) -> RankingParts:
        """The rankings of the parts that read the query, and the votes of one that has some; with k of 0 only these."""
        group = self._fused if self._others is None or is_english(query) else self._others
        inner = [part.ranking_parts(query, 0) for part in group.parts if isinstance(part, HasParts)]
        voted = next((parts for parts in inner if parts.votes), RankingParts())
        parts = zip(group.names, group.parts, strict=True) if k else ()
        rankings = {name: part.search([query], k)[0] for name, part in parts}
        return replace(voted, rankings=rankings)

    def fuse(self, rankings: Sequence[Ranking], k: int) -> Ranking:
        """Fuse the rankings of the parts for one query in English."""
        return self._fused.fuse(rankings, k)

    def _all_parts(self) -> list[Retriever]:
        return [*self._fused.parts, *(self._others.parts if self._others else ())]

    def _search(self, texts: Sequence[str], k: int, search: PartSearch) -> list[Ranking]:
        """Search with the parts that read each text, and fuse."""
        if self._others is None:
            return self._fused.search(range(len(texts)), k, search)
        answers: dict[int, Ranking] = {}
        english = [is_english(text) for text in texts]
        for group, wanted in ((self._fused, True), (self._others, False)):
            read = [index for index, plain in enumerate(english) if plain == wanted]
            answers.update(zip(read, group.search(read, k, search), strict=True))
        return [answers[index] for index in range(len(texts))]


class _FusedParts:
    """Some retrievers and the fusion of their rankings."""

    def __init__(self, parts: Mapping[str, Retriever], fusion: FusionSettings | None) -> None:
        self.names, self.parts = list(parts), list(parts.values())
        self._units = [part.score_unit for part in self.parts if isinstance(part, ComparableScores)]
        self._fusion = fusion or _default_fusion(self._units, len(parts))
        others = [name for name, part in parts.items() if not isinstance(part, ComparableScores)]
        if others and self._fusion.method == "add":
            raise BadInput(f"add takes scores of bm25, dense and milvus; {others[0]} has others", "fusion.method")

    def search(self, read: Sequence[int], k: int, search: PartSearch) -> list[Ranking]:
        """The fused rankings of some texts, by their numbers."""
        if not read:
            return []
        lists = [search(part, read, max(k, DEPTH)) for part in self.parts]
        return [self.fuse(rankings, k) for rankings in zip(*lists, strict=True)]

    def fuse(self, rankings: Sequence[Ranking], k: int) -> Ranking:
        """One ranking of those of the parts; that of a single part as it is."""
        fused = fuse(rankings, k, self._fusion, self._units) if len(rankings) > 1 else rankings[0].cut(k)
        return replace(fused, parts=tuple(rankings))


def _default_fusion(units: Sequence[float], parts: int) -> FusionSettings:
    """Add scores of BM25 and one encoder; other parts, as two encoders, by ranks."""
    return FusionSettings(method="add" if len(set(units)) == parts else "rrf")
