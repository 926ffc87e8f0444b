"""Admission of tools from outside: routes, imports and followed MCP servers all go through here.

Tools beyond the limits of `retrievers.lint.limits` are refused. Tools that fail a check named in `trust.hold` go into
quarantine until an admin approves them; with `trust.reapprove`, so does every change of a tool's texts. Until then the
catalogue keeps the old version, or none. Putting a tool again, or deleting it, withdraws the version in quarantine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipelines.serve.bounds.fairness import current_caller
from pipelines.serve.catalogue.checks import ToolChecks
from pipelines.serve.catalogue.live_index import LiveCatalogue
from pipelines.serve.catalogue.quarantine import Quarantine, QuarantinedTool
from pipelines.serve.errors import Refusal
from retrievers.errors import BadInput
from retrievers.index import Change
from retrievers.lint.finding import quoted
from retrievers.lint.limits import complaint, describe_refusal, listed_sentences
from retrievers.trust.tiers import TrustSettings
from retrievers.types import Tool

log = logging.getLogger("rewrite-serve")


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """The change of the catalogue, tools in quarantine, tools added although a check failed, and refused ones."""

    change: Change
    quarantined: tuple[QuarantinedTool, ...]
    flagged: tuple[QuarantinedTool, ...]
    refused: tuple[str, ...] = ()
    """A sentence about each tool beyond the limits."""


class Admission:
    """Adds tools to the catalogue, or puts them into quarantine."""

    def __init__(
        self, catalogue: LiveCatalogue, trust: TrustSettings | None, folder: str, followed: Collection[str] = ()
    ) -> None:
        """`followed`: names of the MCP servers that are followed."""
        self._catalogue, self._checks = catalogue, ToolChecks(trust, followed)
        self.quarantine = Quarantine(Path(folder).expanduser() if folder else None)
        self._refused: dict[str, tuple[str, ...]] = {}

    @property
    def refused(self) -> Mapping[str, Sequence[str]]:
        """Followed server -> a sentence about each of its tools that is beyond the limits."""
        return self._refused

    async def put(self, tools: Sequence[Tool], source: str = "") -> AdmissionResult:
        """Add or replace tools, except those that are refused or go into quarantine.

        `source`: the followed server that lists them; refusals that were logged before are not logged again.
        """
        complaints = {tool.id: complaint(tool) for tool in tools}
        refused = tuple(describe_refusal(tool, complaints[tool.id]) for tool in tools if complaints[tool.id])
        admitted = [tool for tool in tools if not complaints[tool.id]]
        flagged = await asyncio.to_thread(self._checks.check, self._catalogue.current, admitted)
        sender = source or current_caller()
        waiting = [replace(item, sender=sender) for item in flagged if self._checks.is_held(item)]
        added = [item for item in flagged if not self._checks.is_held(item)]
        out = {item.tool.id for item in waiting}
        passed = [tool for tool in admitted if tool.id not in out]
        self._log(waiting, added, refused if refused != self._refused.get(source) else ())
        if source:
            self._refused[source] = refused
        await self._update_quarantine(waiting, [tool.id for tool in passed])
        change = await self._catalogue.put(passed) if passed else self._no_change()
        return AdmissionResult(change, tuple(waiting), tuple(added), refused)

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
        is_known = tool in self._catalogue.current.index.tools
        return await self._catalogue.delete(tool) if is_known else self._no_change()

    def _no_change(self) -> Change:
        return Change(self._catalogue.current.index.fingerprint)

    def tools_of(self, provider: str) -> list[str]:
        """Ids of the tools of an MCP server of that name, in catalogue and quarantine."""
        tools, waiting = self._catalogue.current.index.tools, self.quarantine.tools
        providers = {tool: tools[tool].provider for tool in tools if tool.startswith(f"{provider}/")}
        providers |= {tool: waiting[tool].tool.provider for tool in waiting if tool.startswith(f"{provider}/")}
        return [tool for tool, name in providers.items() if name == provider]

    def _log(
        self, waiting: Sequence[QuarantinedTool], added: Sequence[QuarantinedTool], refused: Sequence[str]
    ) -> None:
        known = self.quarantine.tools
        fresh = [item for item in waiting if known.get(item.tool.id) != item]  # servers list their tools every minute
        reasons = {
            "waits for approval (`admin: true`, /v1/admin/held)": [
                f"{quoted(item.tool.id)}: {reason}" for item in fresh for reason in item.reasons
            ],
            "flagged": [f"{quoted(item.tool.id)}: {reason}" for item in added for reason in item.reasons],
            "refused": refused,
        }
        for kind, sentences in reasons.items():
            for sentence in listed_sentences(sentences):
                log.warning("%s: %s", kind, sentence)

    async def _update_quarantine(self, waiting: Sequence[QuarantinedTool], removed: Sequence[str]) -> None:
        """Runs before the catalogue changes, so that an approval at the same time cannot undo a newer version."""
        try:
            await asyncio.to_thread(self.quarantine.update, waiting, removed)
        except BadInput as error:
            raise Refusal(503, "held_full", "too many tools wait for approval") from error
        except OSError as error:
            raise Refusal(507, "disk_full", "the server cannot store this now") from error
