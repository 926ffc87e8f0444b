"""The one way into the catalogue for tools from outside: routes, imports and followed MCP servers alike.

Whatever the trust settings hold back waits for an admin: what the checks flag, and, where asked for, every change of
what a tool says of itself. Until then the catalogue has the old version, or none. Whoever puts a tool
again, or takes it out, has withdrawn what he said before: it waits no longer, and nobody can approve it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.serve.catalogue.live_index import LiveCatalogue, Snapshot
from pipelines.serve.catalogue.quarantine import Held, HeldTools
from pipelines.serve.errors import Refusal
from retrievers.errors import BadInput
from retrievers.index import Change
from retrievers.lint.finding import Finding
from retrievers.lint.hidden import hidden
from retrievers.trust.hubs import Hubs
from retrievers.trust.screening import MOST_READ, NEIGHBOURS, Screening
from retrievers.trust.tiers import TrustSettings
from retrievers.types import Ranking, Tool

CHANGED = "changed"
"""The flag of a tool that says something else than before."""
log = logging.getLogger("rewrite-serve")


@dataclass(frozen=True, slots=True)
class Admitted:
    """What became of tools."""

    change: Change
    held: tuple[Held, ...] = ()
    flagged: tuple[Held, ...] = ()
    """What came in all the same."""


class Admission:
    """Lets tools in, or has them wait."""

    def __init__(self, catalogue: LiveCatalogue, trust: TrustSettings, folder: str) -> None:
        self._catalogue, self._trust = catalogue, trust
        self.held = HeldTools(Path(folder).expanduser() if folder else None)
        self._looking: tuple[Snapshot, Screening, Hubs] | None = None

    async def put(self, tools: Sequence[Tool]) -> Admitted:
        """Adds or replaces tools, except for those that have to wait."""
        snapshot = self._catalogue.current
        judged = await asyncio.to_thread(self._judged, snapshot, tools)
        waiting = [each for each in judged if {*self._trust.hold, CHANGED} & set(each.flags)]
        out = {each.tool.id for each in waiting}
        passed = [tool for tool in tools if tool.id not in out]
        await self._hold(waiting, [tool.id for tool in passed])
        if waiting:
            log.info("%d tools wait for approval", len(waiting))
        change = await self._catalogue.put(passed) if passed else Change(snapshot.index.fingerprint)
        return Admitted(change, tuple(waiting), tuple(each for each in judged if each.tool.id not in out))

    async def approve(self, ids: Sequence[str]) -> Change:
        """Lets held tools in."""
        tools = [self.held.all[tool].tool for tool in ids if tool in self.held.all]
        if not tools:
            raise Refusal(404, "not_found", "none of these waits")
        change = await self._catalogue.put(tools)
        await asyncio.to_thread(self.held.drop, ids)
        return change

    async def reject(self, ids: Sequence[str]) -> int:
        """Throws held tools away; how many it were."""
        return len(await asyncio.to_thread(self.held.drop, ids))

    async def remove(self, ids: Sequence[str]) -> None:
        """Takes tools out, one change each."""
        for tool in ids:
            await self.delete(tool)

    async def delete(self, tool: str) -> Change:
        """Takes a tool out, and what waits in its name."""
        await self._hold([], [tool])
        known = self._catalogue.current.index
        return await self._catalogue.delete(tool) if tool in known.tools else Change(known.fingerprint)

    def tools_of(self, provider: str) -> list[str]:
        """Ids of the tools that came from an MCP server of that name, and of those of them that wait."""
        tools, held = self._catalogue.current.index.tools, self.held.all
        known = {tool: tools[tool].provider for tool in tools if tool.startswith(f"{provider}/")}
        known |= {tool: held[tool].tool.provider for tool in held if tool.startswith(f"{provider}/")}
        return [tool for tool, named in known.items() if named == provider]

    async def _hold(self, waiting: Sequence[Held], gone: Sequence[str]) -> None:
        """Before the catalogue changes: who approves at the same moment comes before what is put now, or too late."""
        try:
            await asyncio.to_thread(self.held.keep, waiting, gone)
        except BadInput as error:
            raise Refusal(503, "held_full", "too many tools wait for approval already") from error
        except OSError as error:
            raise Refusal(507, "disk_full", "the server cannot keep this now") from error

    def _judged(self, snapshot: Snapshot, tools: Sequence[Tool]) -> list[Held]:
        known = snapshot.index.tools
        fresh = [tool for tool in tools if tool.id not in known or known[tool.id] != tool]
        reasons: dict[str, list[tuple[str, str]]] = {}
        for finding in self._findings(snapshot, fresh):
            for tool_id in finding.tool_ids:
                reasons.setdefault(tool_id, []).append((finding.check, finding.message))
        if self._trust.reapprove:
            for tool in fresh:
                if tool.id in known and _said(known[tool.id]) != _said(tool):
                    told = (CHANGED, "what it says of itself has changed: read both versions")
                    reasons.setdefault(tool.id, []).append(told)
        return [
            Held(tool, tuple(why for _, why in reasons[tool.id]), tuple(flag for flag, _ in reasons[tool.id]))
            for tool in fresh
            if tool.id in reasons
        ]

    def _findings(self, snapshot: Snapshot, tools: Sequence[Tool]) -> list[Finding]:
        if not tools or not self._trust.hold:
            return list(hidden(tools))
        looking = self._looking
        if looking is None or looking[0] is not snapshot:
            ids = list(snapshot.index.tools)
            some = [snapshot.index.tools[tool] for tool in ids[:: max(1, -(-len(ids) // MOST_READ))]]
            looking = self._looking = (snapshot, Screening(some), Hubs.of(snapshot.index))
        _, screening, hubs = looking

        def near(texts: Sequence[str]) -> list[list[Tool]]:
            found: list[Ranking] = snapshot.search.retrieve(texts, NEIGHBOURS)
            return [[snapshot.index.tools[tool] for tool in ranking.ids] for ranking in found]

        new = [tool for tool in tools if self._is_new(tool)]
        return screening.screen(tools, near, self._is_new) + hubs.findings(new)

    def _is_new(self, tool: Tool) -> bool:
        return self._trust.tier(tool.provider) != "vetted"


def _said(tool: Tool) -> tuple[object, ...]:
    return tool.name, tool.description, tool.parameters, tool.schema
