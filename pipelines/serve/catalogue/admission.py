"""Admission of tools from outside: routes, imports and followed MCP servers all go through here.

Tools that fail a check named in `trust.hold` go into quarantine until an admin approves them; with `trust.reapprove`,
so does every change of a tool's texts. Until then the catalogue keeps the old version, or none. Putting a tool again,
or deleting it, withdraws the version in quarantine.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.serve.catalogue.live_index import LiveCatalogue, Snapshot
from pipelines.serve.catalogue.quarantine import Quarantine, QuarantinedTool
from pipelines.serve.errors import Refusal
from retrievers.errors import BadInput
from retrievers.index import Change
from retrievers.lint.finding import Finding
from retrievers.lint.hidden import hidden
from retrievers.trust.hubs import Hubs
from retrievers.trust.screening import MAX_READ, NEIGHBOURS, Screening
from retrievers.trust.tiers import TrustSettings
from retrievers.types import Ranking, Tool

CHANGED = "changed"
"""Flag of a tool whose texts changed."""
log = logging.getLogger("rewrite-serve")


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """The change of the catalogue, the tools in quarantine, and the tools added although a check failed."""

    change: Change
    quarantined: tuple[QuarantinedTool, ...]
    flagged: tuple[QuarantinedTool, ...]


class Admission:
    """Adds tools to the catalogue, or puts them into quarantine."""

    def __init__(self, catalogue: LiveCatalogue, trust: TrustSettings, folder: str) -> None:
        self._catalogue, self._trust = catalogue, trust
        self.quarantine = Quarantine(Path(folder).expanduser() if folder else None)
        self._checks: tuple[Snapshot, Screening, Hubs] | None = None

    async def put(self, tools: Sequence[Tool]) -> AdmissionResult:
        """Add or replace tools, except those that go into quarantine."""
        snapshot = self._catalogue.current
        flagged = await asyncio.to_thread(self._check, snapshot, tools)
        waiting = [item for item in flagged if {*self._trust.hold, CHANGED} & set(item.flags)]
        out = {item.tool.id for item in waiting}
        passed = [tool for tool in tools if tool.id not in out]
        await self._update_quarantine(waiting, [tool.id for tool in passed])
        if waiting:
            log.info("%d tools wait for approval", len(waiting))
        change = await self._catalogue.put(passed) if passed else Change(snapshot.index.fingerprint)
        return AdmissionResult(change, tuple(waiting), tuple(item for item in flagged if item.tool.id not in out))

    async def approve(self, ids: Sequence[str]) -> Change:
        """Move tools from quarantine into the catalogue."""
        tools = [self.quarantine.tools[tool].tool for tool in ids if tool in self.quarantine.tools]
        if not tools:
            raise Refusal(404, "not_found", "none of these tools is in quarantine")
        change = await self._catalogue.put(tools)
        await asyncio.to_thread(self.quarantine.update, (), ids)
        return change

    async def reject(self, ids: Sequence[str]) -> int:
        """Delete tools from quarantine; returns their number."""
        known = [tool for tool in ids if tool in self.quarantine.tools]
        await asyncio.to_thread(self.quarantine.update, (), known)
        return len(known)

    async def remove(self, ids: Sequence[str]) -> None:
        """Delete tools, one change per tool."""
        for tool in ids:
            await self.delete(tool)

    async def delete(self, tool: str) -> Change:
        """Delete a tool from catalogue and quarantine."""
        await self._update_quarantine([], [tool])
        index = self._catalogue.current.index
        return await self._catalogue.delete(tool) if tool in index.tools else Change(index.fingerprint)

    def tools_of(self, provider: str) -> list[str]:
        """Ids of the tools of an MCP server of that name, in catalogue and quarantine."""
        tools, waiting = self._catalogue.current.index.tools, self.quarantine.tools
        providers = {tool: tools[tool].provider for tool in tools if tool.startswith(f"{provider}/")}
        providers |= {tool: waiting[tool].tool.provider for tool in waiting if tool.startswith(f"{provider}/")}
        return [tool for tool, name in providers.items() if name == provider]

    async def _update_quarantine(self, waiting: Sequence[QuarantinedTool], removed: Sequence[str]) -> None:
        """Runs before the catalogue changes, so that an approval at the same time cannot undo a newer version."""
        try:
            await asyncio.to_thread(self.quarantine.update, waiting, removed)
        except BadInput as error:
            raise Refusal(503, "held_full", "too many tools wait for approval") from error
        except OSError as error:
            raise Refusal(507, "disk_full", "the server cannot store this now") from error

    def _check(self, snapshot: Snapshot, tools: Sequence[Tool]) -> list[QuarantinedTool]:
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
            QuarantinedTool(tool, *map(tuple, zip(*failed[tool.id], strict=True)))
            for tool in changed
            if tool.id in failed
        ]

    def _findings(self, snapshot: Snapshot, tools: Sequence[Tool]) -> list[Finding]:
        if not tools or not self._trust.hold:
            return list(hidden(tools))
        if self._checks is None or self._checks[0] is not snapshot:
            ids = list(snapshot.index.tools)
            sampled = [snapshot.index.tools[tool] for tool in ids[:: max(1, -(-len(ids) // MAX_READ))]]
            self._checks = (snapshot, Screening(sampled), Hubs.of(snapshot.index))
        _, screening, hubs = self._checks

        def near(texts: Sequence[str]) -> list[list[Tool]]:
            rankings: list[Ranking] = snapshot.search.retrieve(texts, NEIGHBOURS)
            return [[snapshot.index.tools[tool] for tool in ranking.ids] for ranking in rankings]

        new = [tool for tool in tools if self._is_new(tool)]
        return screening.screen(tools, near, self._is_new) + hubs.findings(new)

    def _is_new(self, tool: Tool) -> bool:
        return self._trust.tier(tool.provider) != "vetted"


def _texts(tool: Tool) -> tuple[object, ...]:
    return tool.name, tool.description, tool.parameters, tool.schema


def _is_called_elsewhere(known: Tool, tool: Tool) -> bool:
    """True where a known call has changed; the API's version does not count."""
    if not known.call:
        return False
    before, after = (json.loads(one.call or "{}") for one in (known, tool))
    return {**before, "version": ""} != {**after, "version": ""}
