"""Keeps the catalogue in step with MCP servers: what they add is added, what they change is changed, what they no
longer list is taken out.

A server is asked when it says that its list has changed, and every so often in case it does not. A server that cannot
be reached, or lists nothing at all (which is what one does that has not finished starting), changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import mcp_types as types
from mcp import Client

from pipelines.serve.catalogue.mcp_client import connected, failed, tools_of
from pipelines.serve.errors import Refusal
from pipelines.serve.mcp.settings import McpSource
from pipelines.serve.settings import Imports
from retrievers.types import Tool

LONGEST_PAUSE = 300.0
"""Seconds between two tries to reach a server that is away."""
log = logging.getLogger("rewrite-serve")
Put = Callable[[Sequence[Tool]], Awaitable[object]]


class Changing(Protocol):
    """What of the live catalogue is needed here."""

    def tools_of(self, provider: str) -> list[str]:
        """Ids of a provider's tools."""
        ...

    async def remove(self, ids: Sequence[str]) -> object:
        """Takes tools out."""
        ...


class Follower:
    """Follows one server for as long as it runs."""

    def __init__(self, source: McpSource, rules: Imports, put: Put, catalogue: Changing) -> None:
        self._source, self._rules, self._put, self._catalogue = source, rules, put, catalogue
        self._news = asyncio.Event()
        self._pause = 1.0

    async def run(self) -> None:
        """Until it is cancelled."""
        task = asyncio.current_task()
        # A server that goes away at the same moment raises in place of the cancellation: the task still knows of it.
        while task is not None and not task.cancelling():
            try:
                async with connected(self._source, self._rules, message_handler=self._heard) as client:
                    await self._follow(client)
            except Exception as error:  # the server went away, or was never there
                told = failed(error).message
                log.warning("MCP server %s: %s; the catalogue keeps what it has", self._source.name, told)
                if task.cancelling():
                    return
            await asyncio.sleep(min(self._pause, self._source.every_seconds))
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    async def _follow(self, client: Client) -> None:
        listening = asyncio.create_task(self._listen(client))
        try:
            while True:
                self._news.clear()
                await self._step(await tools_of(client, self._source.name, self._rules.seconds))
                self._pause = 1.0
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._source.every_seconds):
                        await self._news.wait()
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _step(self, tools: Sequence[Tool]) -> None:
        if not tools:
            log.warning("MCP server %s lists no tools; the catalogue keeps what it has", self._source.name)
            return
        gone = set(self._catalogue.tools_of(self._source.name)) - {tool.id for tool in tools}
        try:
            await self._put(tools)
            if gone:
                await self._catalogue.remove(sorted(gone))
        except Refusal as refusal:  # the catalogue cannot be changed now: the next look tries again
            log.warning("MCP server %s: %s", self._source.name, refusal.message)

    async def _listen(self, client: Client) -> None:
        """Servers of 2026 tell what has changed where they are asked to; those that do not are asked now and then."""
        with contextlib.suppress(Exception):
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._news.set()

    async def _heard(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._news.set()
