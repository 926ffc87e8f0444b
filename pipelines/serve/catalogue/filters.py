"""Only tools of some providers and categories."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pipelines.serve.catalogue.live_index import Snapshot
from pipelines.serve.schemas import search as wire
from retrievers.types import Ranking, ToolId

Allowed = Callable[[ToolId], bool]


async def allowed_by(filters: wire.Filters | None, snapshot: Snapshot) -> Allowed | None:
    """What tells which tools are wanted; None: all are."""
    if filters is None or not (filters.provider or filters.category):
        return None
    labels = await asyncio.to_thread(lambda: snapshot.labels)  # reads every tool, the first time
    wanted = [{label.casefold() for label in each} for each in (filters.provider, filters.category)]

    def allowed(tool: ToolId) -> bool:
        return all(not some or label in some for label, some in zip(labels[tool], wanted, strict=True))

    return allowed


def only(ranking: Ranking, allowed: Allowed) -> Ranking:
    """A ranking without the others."""
    kept = [hit for hit in ranking if allowed(hit.tool_id)]
    return Ranking(tuple(hit.tool_id for hit in kept), tuple(hit.score for hit in kept))
