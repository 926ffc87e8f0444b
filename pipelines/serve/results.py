"""Parts of a search response: timings by stage, filters, tools with their ranks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from pipelines.calibration import FittingTools
from pipelines.serve.calls.settings import AccessRules
from pipelines.serve.catalogue.live_index import Snapshot
from pipelines.serve.metrics import Metrics
from pipelines.serve.schemas.search import Filters, FoundTool, ListRank, NothingFitsOut, RewriteOut
from retrievers.types import Ranking, ToolId
from rewrite.types import Outcome, Rewrite

ToolFilter = Callable[[ToolId], bool]
Made = TypeVar("Made")
STARTED_AT_ONCE = 4
"""Searches of a request that start in one turn of the event loop; each takes some 0.1 ms."""


@dataclass(slots=True)
class Timings:
    """Seconds by stage; the longest of stages that run several times."""

    started: float = field(default_factory=time.monotonic)
    stages: dict[str, float] = field(default_factory=dict)

    def add(self, stage: str, since: float) -> None:
        """Record a stage that has just ended."""
        self.stages[stage] = max(self.stages.get(stage, 0.0), time.monotonic() - since)

    def finish(self, metrics: Metrics) -> dict[str, float]:
        """Add the total, update the metrics, and return milliseconds by stage."""
        self.add("total", self.started)
        for stage, seconds in self.stages.items():
            metrics.stages.labels(stage).observe(seconds)
        return {stage: round(1000 * seconds, 3) for stage, seconds in self.stages.items()}


async def run_together(searches: Iterable[Coroutine[Any, Any, Made]]) -> list[Made]:
    """The results of searches that run at the same time; if one fails, the others end too. Between the starts of a few
    other requests get a turn of the event loop."""
    tasks = list[asyncio.Task[Made]]()
    try:
        for search in searches:
            tasks.append(asyncio.ensure_future(search))
            if len(tasks) % STARTED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def make_filter(filters: Filters | None, snapshot: Snapshot, access: AccessRules) -> ToolFilter | None:
    """The test of the request's filters and of the caller's rights that a tool must pass; None allows all."""
    may_find = None if access.finds_all else may_find_in(snapshot, access)
    if filters is None or not (filters.provider or filters.category):
        return may_find
    labels = await asyncio.to_thread(lambda: snapshot.labels)  # the first time this reads every tool
    wanted = [{label.casefold() for label in names} for names in (filters.provider, filters.category)]

    def is_allowed(tool: ToolId) -> bool:
        fits = all(not names or label in names for label, names in zip(labels[tool], wanted, strict=True))
        return fits and (may_find is None or may_find(tool))

    return is_allowed


def may_find_in(snapshot: Snapshot, access: AccessRules) -> ToolFilter:
    """The test that a caller may find a tool."""
    tools = snapshot.index.tools
    return lambda tool: access.may_find(tool, tools[tool].provider)


def keep_allowed(ranking: Ranking, is_allowed: ToolFilter) -> Ranking:
    """The ranking without tools that the filter excludes."""
    return ranking.without({tool for tool in ranking.ids if not is_allowed(tool)})


def describe_rewrite(rewrite: Rewrite, status: Outcome, cached: bool) -> RewriteOut:
    """The rewrite as a part of an answer."""
    lines, votes = list(rewrite.lines), list(rewrite.votes)
    return RewriteOut(status=status, lines=lines, votes=votes, cached=cached, finished=rewrite.finished)


def explain_empty(fitting: FittingTools, metrics: Metrics) -> NothingFitsOut | None:
    """Reason why a threshold left no tool, which is also counted; None: it left some, or there was none."""
    reason = fitting.nothing_fits
    if reason is None:
        return None
    metrics.nothing_fits.inc()
    return NothingFitsOut(**asdict(reason), message=str(reason))


def found_tools(
    snapshot: Snapshot, fitting: FittingTools, raw: Ranking, lines: Sequence[Ranking], fused: Ranking | None = None
) -> list[FoundTool]:
    """The tools of an answer, with their ranks in the raw ranking, in those of the rewrite's lines, and before the
    reranker (`fused`)."""
    lists = [("raw", raw), *((f"line {number}", ranking) for number, ranking in enumerate(lines, 1))]
    ranks = [(name, {tool: rank for rank, tool in enumerate(ranking.ids, 1)}) for name, ranking in lists]
    before = {tool: rank for rank, tool in enumerate(fused.ids, 1)} if fused else {}
    tools = []
    unknown = [None] * len(fitting.ranking)
    rows = zip(fitting.ranking, fitting.relevance or unknown, fitting.probabilities or unknown, strict=True)
    for hit, relevance, probability in rows:
        tool = snapshot.index.tools[hit.tool_id]
        tools.append(
            FoundTool(
                id=tool.id,
                name=tool.name,
                description=tool.description,
                provider=tool.provider,
                category=tool.category,
                score=hit.score,
                relevance=relevance,
                probability=probability,
                found_by=[ListRank(list=name, rank=by_id[tool.id]) for name, by_id in ranks if tool.id in by_id],
                fused_rank=before.get(tool.id),
            )
        )
    return tools
