"""Checks of tools from outside, by the tier of their provider.

A followed MCP server is a new provider unless `trust.vetted` names it. Without a `trust` block its tools are the only
ones that are held; findings about all others are reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from pipelines.serve.catalogue.live_index import Snapshot
from pipelines.serve.catalogue.quarantine import QuarantinedTool
from retrievers.lint.finding import Finding
from retrievers.lint.hidden import hidden
from retrievers.trust.hubs import Hubs
from retrievers.trust.screening import MAX_READ, NEIGHBOURS, Screening
from retrievers.trust.tiers import FLAGS, TrustSettings
from retrievers.types import Ranking, Tool

CHANGED = "changed"
"""Flag of a tool whose texts changed."""
TRUST_ALL = TrustSettings(hold=())
"""Trust without a `trust` block: every provider is vetted, nothing is held."""


class ToolChecks:
    """Checks new and changed tools, and decides which of them are held."""

    def __init__(self, trust: TrustSettings | None, followed: Iterable[str]) -> None:
        """`followed`: names of the MCP servers that are followed."""
        self._trust = trust or TRUST_ALL
        self._hold_followed = FLAGS if trust is None else trust.hold
        self._followed = {name.casefold() for name in followed} - {name.casefold() for name in self._trust.vetted}
        self._cached: WeakKeyDictionary[Snapshot, tuple[Screening, Hubs]] = WeakKeyDictionary()

    def is_held(self, item: QuarantinedTool) -> bool:
        """True for a tool that must wait for approval."""
        hold = self._hold_followed if self._is_followed(item.tool) else self._trust.hold
        return not {*hold, CHANGED}.isdisjoint(item.flags)

    def check(self, snapshot: Snapshot, tools: Sequence[Tool]) -> list[QuarantinedTool]:
        """The tools that are new or changed and fail a check."""
        known = snapshot.index.tools
        changed = [tool for tool in tools if tool.id not in known or known[tool.id] != tool]
        failed: dict[str, list[tuple[str, str]]] = {}
        for finding in self._findings(snapshot, changed):
            for tool_id in finding.tool_ids:
                failed.setdefault(tool_id, []).append((finding.message, finding.check))
        if self._trust.reapprove:
            for tool in changed:
                if tool.id not in known:
                    continue
                if _texts(known[tool.id]) != _texts(tool):
                    failed.setdefault(tool.id, []).append(("its texts have changed: compare both versions", CHANGED))
                if _is_called_elsewhere(known[tool.id], tool):
                    failed.setdefault(tool.id, []).append(("its call has changed: compare both versions", CHANGED))
        return [
            QuarantinedTool(tool, tuple(why for why, _ in failed[tool.id]), tuple(flag for _, flag in failed[tool.id]))
            for tool in changed
            if tool.id in failed
        ]

    def _findings(self, snapshot: Snapshot, tools: Sequence[Tool]) -> list[Finding]:
        new = [tool for tool in tools if self._is_new(tool)]
        if not new or not (self._trust.hold or self._hold_followed):
            return list(hidden(tools))
        if snapshot not in self._cached:
            ids = list(snapshot.index.tools)
            sampled = [snapshot.index.tools[tool] for tool in ids[:: max(1, -(-len(ids) // MAX_READ))]]
            self._cached[snapshot] = Screening(sampled), Hubs.of(snapshot.index)
        screening, hubs = self._cached[snapshot]

        def near(texts: Sequence[str]) -> list[list[Tool]]:
            rankings: list[Ranking] = snapshot.search.retrieve(texts, NEIGHBOURS)
            return [[snapshot.index.tools[tool] for tool in ranking.ids] for ranking in rankings]

        return screening.screen(tools, near, self._is_new) + hubs.findings(new)

    def _is_new(self, tool: Tool) -> bool:
        return self._is_followed(tool) or self._trust.tier(tool.provider) != "vetted"

    def _is_followed(self, tool: Tool) -> bool:
        return tool.provider.casefold() in self._followed


def _texts(tool: Tool) -> tuple[object, ...]:
    return tool.name, tool.description, tool.parameters, tool.schema


def _is_called_elsewhere(known: Tool, tool: Tool) -> bool:
    """True where a known call has changed; the API's version does not count."""
    if not known.call:
        return False
    before, after = (json.loads(one.call or "{}") for one in (known, tool))
    return {**before, "version": ""} != {**after, "version": ""}
