"""Build answers away from the searches: large ones in a thread of their own, callers in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pipelines.serve.batcher import Batcher
from pipelines.serve.bounds.costs import too_large
from pipelines.serve.calls.trusted_ranks import TrustedRanks
from pipelines.serve.catalogue.live_index import Snapshot
from pipelines.serve.formats.definitions import DefinitionBuilder
from pipelines.serve.metrics import Metrics
from pipelines.serve.results import ToolFilter, explain_empty, found_tools, keep_allowed
from pipelines.serve.schemas import search as schemas
from retrievers.types import Ranking

Made = TypeVar("Made")
SMALL = 25
"""Tools in an answer without definitions that is built at once; larger ones go to the thread."""
UNLIMITED = 1 << 30
"""Longer than any ranking."""
MAX_WAITING = 1_024
"""Results that may wait for the thread; further ones get 429."""
DUMPED = 4
"""Results that are written as JSON at once."""
BATCH_SIZE = 8
"""Results that the thread builds before it hands them back; a quarter while other callers are active."""


@dataclass(frozen=True, slots=True)
class SearchedQuery:
    """An utterance with its rankings."""

    utterance: str
    fuse: Callable[[], Ranking]
    """Makes the ranking of the answer out of the others."""
    raw: Ranking
    lines: Sequence[Ranking]
    min_score: float | None
    min_probability: float | None
    fused: Ranking | None = None
    """The order before the reranker; None: none was at work."""


class AnswerBuilder:
    """Turns rankings into results, and responses into bytes."""

    def __init__(self, trust: TrustedRanks, metrics: Metrics, max_bytes: int) -> None:
        """`max_bytes`: of an answer; a larger one is refused."""
        self._trust, self._metrics, self._max_bytes = trust, metrics, max_bytes
        self._thread: Batcher[str, Callable[[], Any], Any] = Batcher(_call_all, 1, BATCH_SIZE, MAX_WAITING)
        self._builders: WeakKeyDictionary[Snapshot, dict[str, DefinitionBuilder]] = WeakKeyDictionary()
        """By version, which they must not keep in memory, and format."""

    async def run(self, work: Callable[[], Made]) -> Made:
        """Do some work in the thread for answers; callers take turns."""
        [made] = await self._thread.run("", [work])
        answer: Made = made
        return answer

    async def tools(
        self, snapshot: Snapshot, query: SearchedQuery, k: int, format: str | None, is_small: bool
    ) -> dict[str, Any]:
        """The fields of a result that hold its tools. `is_small`: build them at once."""
        definitions = await self._definition_builder(snapshot, format) if format else None
        build = partial(self._build, snapshot, query, k, definitions)
        return build() if is_small and not format else await self.run(build)

    async def dump(self, response: schemas.SearchResponse, k: int) -> list[bytes]:
        """The response as JSON, in pieces."""
        count = sum(len(result.tools) for result in response.results)
        if count <= SMALL and not any(result.definitions for result in response.results):
            return [response.model_dump_json(by_alias=True).encode()]
        first, last = response.model_copy(update={"results": []}).model_dump_json(by_alias=True).split("[]", 1)
        pieces = [f"{first}[".encode()]
        for done in range(0, len(response.results), DUMPED):
            results = response.results[done : done + DUMPED]
            pieces.append(await self.run(partial(_dump_results, results, is_first=not done)))
            if (size := sum(map(len, pieces))) > self._max_bytes:
                whole = round(size * len(response.results) / (done + len(results)))
                raise too_large(whole, self._max_bytes, len(response.results), k)
        return [*pieces, f"]{last}".encode()]

    async def keep_allowed(self, rankings: Sequence[Ranking], is_allowed: ToolFilter) -> list[Ranking]:
        """The rankings without tools that a filter excludes; long ones in the thread."""
        if sum(map(len, rankings)) <= SMALL:
            return [keep_allowed(ranking, is_allowed) for ranking in rankings]
        return [await self.run(partial(keep_allowed, ranking, is_allowed)) for ranking in rankings]

    def close(self) -> None:
        self._thread.close()

    def _build(
        self, snapshot: Snapshot, query: SearchedQuery, k: int, definitions: DefinitionBuilder | None
    ) -> dict[str, Any]:
        ranking = self._trust.apply(snapshot, query.utterance, query.fuse(), k)
        rankings = [query.raw, *query.lines]
        fitting = snapshot.search.keep_fitting(
            query.utterance, ranking, rankings, query.min_score, query.min_probability
        )
        return {
            "tools": found_tools(snapshot, fitting, query.raw, query.lines, query.fused),
            "nothing_fits": explain_empty(fitting, self._metrics),
            "definitions": definitions.build(fitting.ranking.ids) if definitions else None,
        }

    async def _definition_builder(self, snapshot: Snapshot, format: str) -> DefinitionBuilder:
        builders = self._builders.setdefault(snapshot, {})
        if format not in builders:
            tools = snapshot.index.tools
            builders[format] = await asyncio.to_thread(DefinitionBuilder, tools, tools.names(), format)
        return builders[format]


def _dump_results(results: Sequence[schemas.SearchResult], is_first: bool) -> bytes:
    """Results as parts of a JSON list."""
    return b"".join(
        ("," * bool(number or not is_first) + result.model_dump_json(by_alias=True)).encode()
        for number, result in enumerate(results)
    )


def _call_all(_: str, work: Sequence[Callable[[], Any]]) -> list[Any]:
    return [item() for item in work]
