"""Tools of the catalogue in the MCP list itself, for clients that do not search and call through two tools.

Listed are all tools of the providers that the config names, and the tools that the caller's newest search found. Their
names end in a hash of the id, so that a name never means another tool, not even in a list that is out of date. Callers
are notified when their list changes: by their own search, or because a provider's tools have changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

from pipelines.serve.catalogue.live_index import Snapshot
from pipelines.serve.formats.definitions import mcp_tool
from pipelines.serve.gateway import Gateway
from pipelines.serve.keys import Caller
from retrievers.types import Tool

MAX_CALLERS = 10_000
"""Callers whose searches are remembered."""
WATCH_SECONDS = 1.0
"""Seconds between two looks at the catalogue, for changes of the listed providers."""
HASH = 16
"""Hexadecimal digits at the end of a name. A provider chooses its ids, and must not find one with another's hash."""
Context = ServerRequestContext[Any, Any]


class ListedTools:
    """The tools that each caller sees in its list."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._settings = gateway, gateway.config.calls
        self._found: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._buses: dict[str, tuple[InMemorySubscriptionBus, ListenHandler]] = {}
        self._ids: WeakKeyDictionary[Snapshot, Mapping[str, str]] = WeakKeyDictionary()
        self.session: ServerSession | None = None
        """The session on standard input, which is notified without a subscription."""

    @property
    def changes(self) -> bool:
        """True if a caller's list can change."""
        return self._settings.list_found > 0 or bool(self._settings.list_providers)

    def tools(self, caller: Caller) -> list[types.Tool]:
        """The list of a caller, after the tools of the gateway itself."""
        if "call" not in caller.scopes:
            return []
        catalogue = self._gateway.catalogue.current.index.tools
        ids = dict.fromkeys((*self._of_providers(catalogue), *self._found.get(caller.name, ())))
        tools = [catalogue[tool] for tool in ids if tool in catalogue]
        return [_define(tool) for tool in tools if self._gateway.calls.may_call(caller, tool)]

    async def resolve(self, name: str) -> str | None:
        """The id of the tool with a listed name. The first time this reads every tool, in a thread."""
        snapshot = self._gateway.catalogue.current
        if (ids := self._ids.get(snapshot)) is None:
            tools = snapshot.index.tools.values()
            ids = self._ids[snapshot] = await asyncio.to_thread(lambda: {_name(tool): tool.id for tool in tools})
        return ids.get(name)

    def keeps_searches(self, caller: Caller) -> bool:
        """True if the tools of a search come into the caller's list."""
        return self._settings.list_found > 0 and "call" in caller.scopes

    async def remember(self, caller: Caller, ids: Sequence[str], context: Context) -> None:
        """Take the tools of a search into the caller's list, and announce that it changed."""
        if not self.keeps_searches(caller):
            return
        newest = tuple(ids[: self._settings.list_found])
        if newest == self._found.get(caller.name, ()):
            return
        self._found[caller.name] = newest
        self._found.move_to_end(caller.name)
        while len(self._found) > MAX_CALLERS:
            self._found.popitem(last=False)
        await self._bus(caller)[0].publish(ToolsListChanged())
        await context.session.send_tool_list_changed()  # of earlier protocols; dropped where nothing can carry it

    async def watch(self) -> None:
        """Announce changes of the listed providers' tools, until cancelled."""
        snapshot = self._gateway.catalogue.current
        listed = self._listed(snapshot)
        while self._settings.list_providers:
            await asyncio.sleep(WATCH_SECONDS)
            if (newer := self._gateway.catalogue.current) is snapshot:
                continue
            snapshot, before = newer, listed
            if (listed := self._listed(snapshot)) != before:
                for bus, _ in list(self._buses.values()):
                    await bus.publish(ToolsListChanged())
                if self.session is not None:
                    await self.session.send_tool_list_changed()

    async def listen(
        self, caller: Caller, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve a stream of this caller's changes."""
        return await self._bus(caller)[1](context, params)

    def _bus(self, caller: Caller) -> tuple[InMemorySubscriptionBus, ListenHandler]:
        if caller.name not in self._buses:
            bus = InMemorySubscriptionBus()
            self._buses[caller.name] = bus, ListenHandler(bus, max_subscriptions=64)
        return self._buses[caller.name]

    def _listed(self, snapshot: Snapshot) -> dict[str, Tool]:
        tools = snapshot.index.tools
        return {tool: tools[tool] for tool in self._of_providers(tools)}

    def _of_providers(self, catalogue: Mapping[str, Tool]) -> Iterator[str]:
        if wanted := set(self._settings.list_providers):
            yield from (tool.id for tool in catalogue.values() if tool.provider in wanted)


def _name(tool: Tool) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", tool.name).strip("_")[: 63 - HASH] or "tool"
    return f"{plain}_{hashlib.sha256(tool.id.encode('utf-8', 'replace')).hexdigest()[:HASH]}"


def _define(tool: Tool) -> types.Tool:
    facts = json.loads(tool.call) if tool.call else {}
    return types.Tool.model_validate({**mcp_tool(tool, _name(tool)), "annotations": facts.get("annotations")})
