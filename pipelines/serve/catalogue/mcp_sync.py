"""Keep the catalogue in sync with MCP servers: add, update and remove tools as their lists change.

A server's list is read when it sends a notification, and every `poll_seconds`. A server that cannot be reached, or
lists no tools (as one does that is still starting), changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Protocol

import mcp_types as types
from mcp import Client

from pipelines.serve.catalogue.mcp_client import McpConnection, connect, read_tools, to_refusal
from pipelines.serve.errors import Refusal
from pipelines.serve.settings import ImportRules, McpSource
from retrievers.types import Tool

MAX_PAUSE = 300.0
"""Seconds between two attempts to reach a server."""
log = logging.getLogger("rewrite-serve")


class ToolTarget(Protocol):
    """The catalogue that a server's tools go into."""

    async def put(self, tools: Sequence[Tool], source: str) -> object:
        """Add or replace the tools of a server."""
        ...

    def tools_of(self, provider: str) -> list[str]:
        """Ids of a provider's tools."""
        ...

    async def remove(self, ids: Sequence[str]) -> object:
        """Remove tools."""
        ...


class McpFollower:
    """Follows one server."""

    def __init__(self, source: McpSource, rules: ImportRules, catalogue: ToolTarget) -> None:
        self._source, self._rules, self._catalogue = source, rules, catalogue
        self._changed = asyncio.Event()
        self._pause = 1.0
        self.error = ""
        """Why the server cannot be reached; empty: it can."""

    async def run(self) -> None:
        """Follow the server until cancelled."""
        task = asyncio.current_task()
        # If the server disconnects during a cancellation, its error replaces CancelledError; the task still knows.
        while task is not None and not task.cancelling():
            try:
                async with connect(
                    self._source, self._rules, on_close=self._on_close, message_handler=self._on_message
                ) as connection:
                    await self._follow(connection)
            except Exception as error:  # the server went away, or was never there
                self.error = to_refusal(error).message
                log.warning("MCP server %s: %s; the catalogue keeps its tools", self._source.name, self.error)
                if task.cancelling():
                    return
            await self._rest(min(self._pause, self._source.poll_seconds))
            self._pause = min(2 * self._pause, MAX_PAUSE)

    async def _follow(self, connection: McpConnection) -> None:
        client = connection.client
        listening = asyncio.create_task(self._listen(client))
        try:
            while True:
                self._changed.clear()
                tools = await read_tools(client, self._source.name, self._rules.seconds, self._source.secrets)
                await self._sync(tools)
                self._pause, self.error = 1.0, ""
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._source.poll_seconds):
                        await self._changed.wait()
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _rest(self, seconds: float) -> None:
        """Wait before the next attempt to connect."""
        await asyncio.sleep(seconds)

    def _on_close(self) -> None:
        """A command has ended."""

    async def _sync(self, tools: Sequence[Tool]) -> None:
        if not tools:
            log.warning("MCP server %s lists no tools; the catalogue keeps its tools", self._source.name)
            return
        removed = set(self._catalogue.tools_of(self._source.name)) - {tool.id for tool in tools}
        try:
            await self._catalogue.put(tools, self._source.name)
            if removed:
                await self._catalogue.remove(sorted(removed))
        except Refusal as refusal:  # the catalogue cannot be changed now: the next poll tries again
            log.warning("MCP server %s: %s", self._source.name, refusal.message)

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes, as servers of 2026 offer; others are only polled."""
        with contextlib.suppress(Exception):
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._changed.set()

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed.set()
