"""Read the tools of a running MCP server, over HTTP or from a command that the config names.

Over HTTP the rules of imports hold: allowed hosts, public addresses unless private ones are allowed, no redirects,
bounded in bytes and time. The address that was checked is the one that is connected to.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import CallOptions
from mcp_types import CONNECTION_CLOSED
from pydantic import ValidationError

from pipelines.serve.catalogue.fetch import Address, check_url
from pipelines.serve.catalogue.http_requests import HttpRequests
from pipelines.serve.catalogue.redaction import redact
from pipelines.serve.catalogue.stdio_requests import NOT_SENT, Requests, StdioRequests
from pipelines.serve.catalogue.stdio_transport import stdio_transport
from pipelines.serve.errors import Refusal
from pipelines.serve.settings import ImportRules, McpSource
from retrievers.catalogue.mcp import tool_of
from retrievers.errors import BadInput
from retrievers.types import Tool

log = logging.getLogger("rewrite-serve")

MAX_TOOLS = 20_000
"""Tools per server; a longer list counts as endless."""


class McpConnection(NamedTuple):
    """A connected client of the SDK, and the way past it for calls."""

    client: Client
    requests: Requests


class PinnedTransport(httpx2.AsyncBaseTransport):
    """Connects to one checked address only; limits the bytes of a response; refuses redirects."""

    def __init__(self, host: str, address: Address, max_bytes: int) -> None:
        self._host, self._max_bytes = host, max_bytes
        self.contains_errors = False
        """Answer a failed request with a JSON-RPC error, so that the other requests of the connection live on."""
        self.session_id = ""
        """The session that the server opened, of protocols that have sessions."""
        self._address = f"[{address}]" if address.version == 6 else str(address)
        self._inner = httpx2.AsyncHTTPTransport(retries=0, trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.host != self._host:
            raise httpx2.UnsupportedProtocol("the server redirects to another host")
        request.extensions = {**request.extensions, "sni_hostname": self._host}
        request.url = request.url.copy_with(host=self._address)  # the Host header is set already
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            if not self.contains_errors:
                raise
            was_sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
            return _error_response(CONNECTION_CLOSED if was_sent else NOT_SENT)
        if 300 <= response.status_code < 400:
            await response.aclose()
            raise httpx2.UnsupportedProtocol("redirects are not followed")
        self.session_id = response.headers.get("mcp-session-id", self.session_id)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _LimitedStream(response.stream, self._max_bytes)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def _error_response(code: int) -> httpx2.Response:
    """An HTTP error whose body is a JSON-RPC error, which the SDK hands to the request that failed."""
    return httpx2.Response(502, json={"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "failed"}})


class _TooLarge(httpx2.StreamError):
    """A limit on bytes was exceeded; the SDK fails only the request that was answered."""


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._inner, self._left = inner, max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            self._left -= len(chunk)
            if self._left < 0:
                raise _TooLarge("the answer is too large")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def connect(
    source: McpSource,
    rules: ImportRules,
    environment: dict[str, str] | None = None,
    on_close: Callable[[], object] = lambda: None,
    **more: Any,
) -> AsyncIterator[McpConnection]:
    """A connection to the source's server; any failure to connect raises a Refusal.

    A command gets the given environment, else the few variables that the SDK considers harmless and those that the
    source names. `on_close` is called when a command's output ends.
    """
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(rules.seconds):
                server: Any = None
                requests: Requests
                transport: PinnedTransport | None = None
                if source.url:
                    http = await stack.enter_async_context(_http(source, rules, more.get("message_handler")))
                    server, transport, requests = http
                else:
                    environment = _environment(source) if environment is None else environment
                    requests = StdioRequests()
                    server = stdio_transport(source.command, environment, rules.bytes, on_close, requests)
                client = await stack.enter_async_context(Client(server, read_timeout_seconds=rules.seconds, **more))
                if transport is not None:
                    transport.contains_errors = True
        except Refusal:
            raise
        except Exception as error:
            raise to_refusal(error) from error
        yield McpConnection(client, requests)


def _environment(source: McpSource) -> dict[str, str]:
    return {name: os.environ[name] for name in source.variables if name in os.environ}


def to_refusal(error: Exception) -> Refusal:
    """A Refusal for an error of the connection; it repeats nothing that the server sent."""
    if isinstance(error, ExceptionGroup):
        return to_refusal(error.exceptions[0])
    if isinstance(error, Refusal):
        return error
    if isinstance(error, BadInput):
        return Refusal(422, "import_failed", str(error))
    if not isinstance(error, OSError | MCPError | httpx2.HTTPError | ValueError):
        # The SDK's streams may raise anything; log it, as it may be a bug of ours.
        log.warning("an MCP client failed", exc_info=error)
    not_sent = isinstance(error, MCPError) and error.code == NOT_SENT
    if not_sent or isinstance(error, httpx2.ConnectError | ConnectionError):
        return Refusal(422, "import_failed", "the server refuses the connection")
    how = "in time" if isinstance(error, TimeoutError) else "as an MCP server"
    return Refusal(422, "import_failed", f"the server does not answer {how}; redirects are not followed")


@asynccontextmanager
async def _http(
    source: McpSource, rules: ImportRules, handler: Callable[[Any], Awaitable[None]] | None
) -> AsyncIterator[tuple[Any, PinnedTransport, HttpRequests]]:
    async def on_change() -> None:
        if handler is not None:
            await handler(types.ToolListChangedNotification())

    parts, address = await asyncio.to_thread(check_url, source.url, rules)
    key = os.environ.get(source.key_variable, "").strip() if source.key_variable else ""
    transport = PinnedTransport(parts.host, address, rules.bytes)
    async with httpx2.AsyncClient(
        transport=transport,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx2.Timeout(rules.seconds, read=None),  # notifications may take long; requests have own limits
        trust_env=False,
    ) as client:
        requests = HttpRequests(
            source.url, address, key, rules.bytes, rules.seconds, lambda: transport.session_id, on_change
        )
        try:
            yield streamable_http_client(source.url, http_client=client), transport, requests
        finally:
            await requests.close()


async def read_tools(client: Client, provider: str, seconds: float, secrets: Sequence[str] = ()) -> list[Tool]:
    """All tools of a server's list; one that is wrong is logged and skipped. `secrets`: as for `redact`."""
    tools: dict[str, Tool] = {}
    for facts in await list_tools(client, seconds):
        try:
            tool = tool_of(_without(facts, secrets), "the server's list", provider)
        except BadInput as error:
            log.warning("skipped a tool of %s: %s", provider or "an MCP server", error)
        else:
            tools[tool.id] = tool
    return list(tools.values())


def _without(facts: dict[str, Any], secrets: Sequence[str]) -> dict[str, Any]:
    cleaned: dict[str, Any] = json.loads(redact(json.dumps(facts), secrets)) if any(secrets) else facts
    return cleaned


async def list_tools(client: Client, seconds: float) -> list[dict[str, Any]]:
    """A server's answer to tools/list, all pages, each name once."""
    tools: dict[str, dict[str, Any]] = {}
    cursor: str | None = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                page, after = await _page(client, cursor)
                for tool in page:
                    tools[tool.name] = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
                if after is None:
                    return list(tools.values())
                if after == cursor or len(tools) > MAX_TOOLS or not page:
                    raise Refusal(422, "import_failed", "the server's list of tools has no end")
                cursor = after
    except (MCPError, TimeoutError) as error:
        raise to_refusal(error) from error


async def _page(client: Client, cursor: str | None) -> tuple[list[types.Tool], str | None]:
    """The tools of one page, and the cursor of the next."""
    try:
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        return page.tools, page.next_cursor
    except ValidationError:
        return await _lenient_page(client, cursor)


async def _lenient_page(client: Client, cursor: str | None) -> tuple[list[types.Tool], str | None]:
    """The valid tools of a page. The SDK refuses the whole page for one that is wrong, so it is read without it."""
    params = types.PaginatedRequestParams(cursor=cursor)
    request = types.ListToolsRequest(params=params).model_dump(by_alias=True, mode="json", exclude_none=True)
    options: CallOptions = {}
    session = client.session
    session._stamp(request, options)
    answer = await session._dispatcher.send_raw_request(request["method"], request.get("params"), options)
    entries, after = answer.get("tools"), answer.get("nextCursor")
    if not isinstance(entries, list) or not isinstance(after, str | None):
        raise Refusal(422, "import_failed", "the server's answer to tools/list is not valid")
    tools = []
    for number, entry in enumerate(entries):
        try:
            tools.append(types.Tool.model_validate(entry, by_name=False))
        except ValidationError as error:
            path = ".".join(str(step) for step in error.errors()[0]["loc"]) or "it"
            log.warning("skipped tool %d of the server's page: %s is not valid", number + 1, path)
    return tools, after


async def fetch_mcp_tools(source: McpSource, rules: ImportRules) -> list[Tool]:
    """The tools that a server has now."""
    try:
        async with connect(source, rules) as (client, _):
            name = source.name or (client.server_info.name if client.server_info else "")
            return await read_tools(client, name, rules.seconds, source.secrets)
    except ExceptionGroup as group:  # from the SDK's task group
        raise to_refusal(group) from group
