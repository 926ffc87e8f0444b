"""What was found, as it is told: tools with the lists that hold them, rewrites, seconds by stage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipelines.serve.catalogue.live_index import Snapshot
from pipelines.serve.metrics import Metrics
from pipelines.serve.rewriter.rewriting import Rewritten
from pipelines.serve.schemas import search as wire
from retrievers.types import Ranking


@dataclass(slots=True)
class Timings:
    """Seconds by stage; of what happens several times, the longest."""

    started: float = field(default_factory=time.monotonic)
    stages: dict[str, float] = field(default_factory=dict)

    def add(self, stage: str, since: float) -> None:
        """One stage has ended."""
        self.stages[stage] = max(self.stages.get(stage, 0.0), time.monotonic() - since)

    def milliseconds(self, metrics: Metrics) -> dict[str, float]:
        """All of them, told to Prometheus as well."""
        self.add("total", self.started)
        for stage, seconds in self.stages.items():
            metrics.stages.labels(stage).observe(seconds)
        return {stage: round(1000 * seconds, 3) for stage, seconds in self.stages.items()}


def rewrite_on_wire(found: Rewritten) -> wire.Rewritten:
    """A rewrite as it is told."""
    rewrite = found.rewrite
    return wire.Rewritten(
        status=rewrite.status, lines=list(rewrite.lines), cached=found.cached, finished=rewrite.finished
    )


def tools_on_wire(snapshot: Snapshot, fused: Ranking, raw: Ranking, lists: Sequence[Ranking]) -> list[wire.FoundTool]:
    """The tools of a ranking, each with the lists that hold it."""
    named = [("raw", raw), *((f"line {number}", ranking) for number, ranking in enumerate(lists, 1))]
    places = [(name, {tool: place for place, tool in enumerate(ranking.ids, 1)}) for name, ranking in named]
    found = []
    for hit in fused:
        tool = snapshot.index.tools[hit.tool_id]
        by = [wire.Place(list=name, place=known[tool.id]) for name, known in places if tool.id in known]
        found.append(
            wire.FoundTool(
                id=tool.id,
                name=tool.name,
                description=tool.description,
                provider=tool.provider,
                category=tool.category,
                score=hit.score,
                found_by=by,
            )
        )
    return found
