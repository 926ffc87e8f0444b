"""The tools of a running MCP server: asked over HTTP by the rules of every import, or of a command of the config's.

Over HTTP the host must be allowed and its address public (or private ones allowed), redirects are not followed, and
bytes and time are bounded. The address that was looked at is the one that is connected to.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from pipelines.serve.catalogue.fetch import checked
from pipelines.serve.errors import Refusal
from pipelines.serve.mcp.settings import McpSource
from pipelines.serve.settings import Imports
from retrievers.catalogue.mcp import tool_of
from retrievers.errors import BadInput
from retrievers.types import Tool

log = logging.getLogger("rewrite-serve")

MOST_TOOLS = 20_000
"""Of one server; a list without an end is none."""


class Pinned(httpx2.AsyncBaseTransport):
    """Connects to one address, whatever the name says a moment later; counts bytes; takes no redirect."""

    def __init__(self, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address, most: int) -> None:
        self._host, self._address, self._most = host, f"[{address}]" if address.version == 6 else str(address), most
        self._inner = httpx2.AsyncHTTPTransport(retries=0, trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """One request, to that address only."""
        if request.url.host != self._host:
            raise httpx2.UnsupportedProtocol("the server wants to be asked elsewhere")
        request.extensions = {**request.extensions, "sni_hostname": self._host}
        request.url = request.url.copy_with(host=self._address)  # the Host header is written already
        response = await self._inner.handle_async_request(request)
        if 300 <= response.status_code < 400:
            await response.aclose()
            raise httpx2.UnsupportedProtocol("redirects are not followed")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream, self._most)
        return response

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._inner.aclose()


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, most: int) -> None:
        self._inner, self._left = inner, most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for some in self._inner:
            self._left -= len(some)
            if self._left < 0:
                raise httpx2.ReadError("the answer is too large")
            yield some

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def connected(
    source: McpSource, rules: Imports, environment: dict[str, str] | None = None, **more: Any
) -> AsyncIterator[Client]:
    """A client of the source's server. Whatever goes wrong with that is a Refusal.

    A command gets the environment given, else the few variables that the SDK thinks harmless.
    """
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(rules.seconds):
                server = (
                    await stack.enter_async_context(_http(source, rules))
                    if source.url
                    else _command(source, environment)
                )
                client = await stack.enter_async_context(Client(server, read_timeout_seconds=rules.seconds, **more))
        except Refusal:
            raise
        except Exception as error:
            raise failed(error) from error
        yield client


def failed(error: Exception) -> Refusal:
    """Why a server was no use, in a sentence without anything of the server's."""
    if isinstance(error, ExceptionGroup):
        return failed(error.exceptions[0])
    if isinstance(error, Refusal):
        return error
    if isinstance(error, BadInput):
        return Refusal(422, "import_failed", str(error))
    if not isinstance(error, OSError | MCPError | httpx2.HTTPError | ValueError):
        # Streams of the SDK may end with anything; what could be a fault of ours is not lost.
        log.warning("an MCP client failed", exc_info=error)
    what = "does not answer in time" if isinstance(error, TimeoutError) else "does not answer as an MCP server"
    return Refusal(422, "import_failed", f"the server {what}; redirects are not followed")


@asynccontextmanager
async def _http(source: McpSource, rules: Imports) -> AsyncIterator[Any]:
    parts, address = await asyncio.to_thread(checked, source.url, rules)
    key = os.environ.get(source.key_variable, "").strip() if source.key_variable else ""
    async with httpx2.AsyncClient(
        transport=Pinned(parts.host, address, rules.bytes),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx2.Timeout(rules.seconds, read=None),  # what waits for news waits long; requests have limits
        trust_env=False,
    ) as client:
        yield streamable_http_client(source.url, http_client=client)


def _command(source: McpSource, environment: dict[str, str] | None) -> StdioServerParameters:
    return StdioServerParameters(command=source.command[0], args=list(source.command[1:]), env=environment)


async def tools_of(client: Client, provider: str, seconds: float) -> list[Tool]:
    """All tools that a server lists."""
    try:
        made = [tool_of(facts, "the server's list", provider) for facts in await listed(client, seconds)]
    except BadInput as error:
        raise failed(error) from error
    return list({tool.id: tool for tool in made}.values())


async def listed(client: Client, seconds: float) -> list[dict[str, Any]]:
    """What a server answers to tools/list, page by page, each name once."""
    found: dict[str, dict[str, Any]] = {}
    cursor: str | None = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                page = await client.list_tools(cursor=cursor, cache_mode="refresh")
                for tool in page.tools:
                    found[tool.name] = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
                if page.next_cursor is None:
                    return list(found.values())
                if page.next_cursor == cursor or len(found) > MOST_TOOLS or not page.tools:
                    raise Refusal(422, "import_failed", "the server's list of tools has no end")
                cursor = page.next_cursor
    except (MCPError, TimeoutError) as error:
        raise failed(error) from error


async def fetch_mcp_tools(source: McpSource, rules: Imports) -> list[Tool]:
    """The tools that a server has now."""
    try:
        async with connected(source, rules) as client:
            name = source.name or (client.server_info.name if client.server_info else "")
            return await tools_of(client, name, rules.seconds)
    except ExceptionGroup as group:  # the SDK's tasks end together
        raise failed(group) from group
