"""Types that every package uses: Tool, Hit, Ranking."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

ToolId = str


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool."""

    name: str
    type: str = ""
    description: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that an agent can call. `retrievers.text.document` renders it as text."""

    id: ToolId
    name: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    category: str = ""
    provider: str = ""
    schema: str = ""
    """The arguments' JSON Schema as the source gave it; "" for none."""
    call: str = ""
    """JSON; "": unknown. Of an HTTP API: method, server, path, places of the arguments and security; of an MCP server:
    its annotations. Not indexed."""


class Hit(NamedTuple):
    """One tool of a ranking."""

    tool_id: ToolId
    score: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Tool ids, best first, with their scores; equal scores are ordered by id."""

    ids: tuple[ToolId, ...] = ()
    scores: tuple[float, ...] = ()
    probabilities: tuple[float, ...] = ()
    """Per tool, the estimated probability that the request needs it; empty: not calibrated."""
    parts: tuple[Ranking, ...] = field(default=(), repr=False, compare=False)
    """The rankings that a hybrid fused: evidence for its probabilities."""

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Hit]:
        return (Hit(tool, score) for tool, score in zip(self.ids, self.scores, strict=True))

    def cut(self, k: int) -> Ranking:
        """The first k tools, without parts."""
        return Ranking(self.ids[:k], self.scores[:k], self.probabilities[:k])

    def without(self, tools: Collection[ToolId]) -> Ranking:
        """The ranking, and its parts, as if some tools were not in the catalogue."""
        kept = [rank for rank, tool in enumerate(self.ids) if tool not in tools]
        return Ranking(
            tuple(self.ids[rank] for rank in kept),
            tuple(self.scores[rank] for rank in kept),
            tuple(self.probabilities[rank] for rank in kept) if self.probabilities else (),
            tuple(part.without(tools) for part in self.parts),
        )


def ranked(scored: Iterable[tuple[ToolId, float]], k: int) -> Ranking:
    """The k best of (tool, score) pairs; ties are broken by id."""
    best = sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:k]
    return Ranking(tuple(tool for tool, _ in best), tuple(score for _, score in best))
