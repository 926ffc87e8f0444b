"""Requests of our own to an MCP server over HTTP, past the SDK's client, which costs more than the rest of a call.

Connections stay open between requests. The rules of imports hold here as well: one checked address, no redirects,
bounded in bytes. The SDK's client shakes hands, reads the list and listens for changes on connections of its own.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import httpx
from aiohttp.abc import AbstractResolver, ResolveResult
from mcp import MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, METHOD_NOT_FOUND
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import from_json

from pipelines.serve.catalogue.fetch import Address
from pipelines.serve.catalogue.stdio_requests import NOT_SENT, Background, Message, cancellation, report, result_of
from pipelines.serve.catalogue.stdio_transport import TOO_LARGE, LineSplitter

KEEP_SECONDS = 4.0
"""Idle connections are closed before the server does it: uvicorn and Node wait five seconds."""
RESUME_SECONDS = 1.0
"""Pause before a stream that broke is asked for again, by its newest event."""
MAX_RESUMED = 3
NOTICE_SECONDS = 5.0
"""Time limit of a message that needs no answer."""
ACCEPT = "application/json, text/event-stream"


class _PinnedResolver(AbstractResolver):
    """Knows one address, which was checked."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        family = socket.AF_INET6 if self._address.version == 6 else socket.AF_INET
        return [ResolveResult(hostname=host, host=str(self._address), port=port, family=family, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing is open."""


class HttpRequests:
    """Requests to one server."""

    def __init__(
        self,
        url: str,
        address: Address,
        key: str,
        max_bytes: int,
        seconds: float,
        session_id: Callable[[], str],
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        """`seconds`: to connect. `session_id`: of the SDK's session. `on_change`: the list of tools has changed."""
        self._url, self._max_bytes, self._session_id, self._on_change = url, max_bytes, session_id, on_change
        self._headers = {"Accept": ACCEPT, "Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._background = Background()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=_PinnedResolver(address),
                limit=0,  # calls per server are limited by its source
                keepalive_timeout=KEEP_SECONDS,
                ssl=httpx.create_ssl_context(trust_env=False) if url.startswith("https:") else True,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=seconds),
            auto_decompress=False,
        )

    async def close(self) -> None:
        await self._session.close()

    async def send(self, message: Message, headers: Mapping[str, str], progress: ProgressFnT | None) -> Any:
        headers = {**self._headers, **headers}
        if session := self._session_id():
            headers["Mcp-Session-Id"] = session
        try:
            return result_of(await self._answer(message, headers, progress))
        except asyncio.CancelledError:
            # Newer servers see the closed connection; earlier ones take only a message for a cancellation.
            if headers.get(MCP_PROTOCOL_VERSION_HEADER) not in MODERN_PROTOCOL_VERSIONS:
                self._background.start(self._post(cancellation(message), headers))
            raise
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise MCPError(NOT_SENT, "the server refuses the connection") from None
        except (aiohttp.ClientError, OSError):
            raise MCPError(CONNECTION_CLOSED, "the connection broke") from None

    async def _answer(self, message: Message, headers: dict[str, str], progress: ProgressFnT | None) -> Message:
        """The answer, from the body of the request or from streams that go on where the last one ended."""
        newest = ""
        for attempt in range(MAX_RESUMED):
            if attempt:
                await asyncio.sleep(RESUME_SECONDS)
                request = self._session.get(
                    self._url, headers={**headers, "Last-Event-ID": newest}, allow_redirects=False
                )
            else:
                data = json.dumps(message).encode()
                request = self._session.post(self._url, data=data, headers=headers, allow_redirects=False)
            async with request as response:
                media = response.headers.get("Content-Type", "").lower()
                if response.status != 200 or not media.startswith("text/event-stream"):
                    return await self._read_json(response, media, "Mcp-Session-Id" in headers)
                with suppress(aiohttp.ClientPayloadError):  # the stream broke
                    async for identity, event in self._events(response):
                        newest = identity or newest
                        if isinstance(event, dict) and await self._take(event, message, headers, progress):
                            return event
            if not newest:
                break
        raise MCPError(CONNECTION_CLOSED, "the stream ended without an answer")

    async def _read_json(self, response: aiohttp.ClientResponse, media: str, has_session: bool) -> Message:
        if 300 <= response.status < 400:
            raise MCPError(INTERNAL_ERROR, "the server redirects, which is not followed")
        data = bytearray()
        async for chunk in response.content.iter_any():
            data += chunk
            if len(data) > self._max_bytes:
                raise MCPError(TOO_LARGE, "the answer is too large")
        answer = None
        if media.startswith("application/json"):
            with suppress(ValueError, RecursionError):
                answer = from_json(bytes(data))
        if isinstance(answer, dict) and ("error" in answer or (response.status == 200 and "result" in answer)):
            return answer
        if response.status == 404 and has_session:
            raise MCPError(NOT_SENT, "the server does not know the session any more")
        raise MCPError(INTERNAL_ERROR, f"HTTP {response.status} without a result")

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
        """The ids and messages of a stream."""
        splitter, left = LineSplitter(self._max_bytes), self._max_bytes
        data: list[bytes] = []
        identity = ""
        async for chunk in response.content.iter_any():
            left -= len(chunk)
            if left < 0:
                raise MCPError(TOO_LARGE, "the answer is too large")
            for line in splitter.feed(chunk):
                assert isinstance(line, bytes)  # the whole stream fits
                name, _, value = line.rstrip(b"\r").partition(b":")
                value = value.removeprefix(b" ")
                if name == b"data":
                    data.append(value)
                elif name == b"id":
                    identity = value.decode("latin-1")
                elif not name and not value:
                    event = None
                    with suppress(ValueError, RecursionError):
                        event = from_json(b"\n".join(data)) if any(data) else None
                    yield identity, event
                    data = []

    async def _take(
        self, event: Message, message: Message, headers: dict[str, str], progress: ProgressFnT | None
    ) -> bool:
        """True if an event is the answer; handles everything else."""
        method, params = event.get("method"), event.get("params")
        if method is None:
            return "result" in event or "error" in event
        if "id" in event:  # the server asks its client, which has no user here
            error = {"code": METHOD_NOT_FOUND, "message": "this client answers no requests"}
            answer = {"result": {}} if method == "ping" else {"error": error}
            self._background.start(self._post({"jsonrpc": "2.0", "id": event["id"], **answer}, headers))
        elif method == "notifications/tools/list_changed":
            await self._on_change()
        elif method == "notifications/progress" and progress is not None and isinstance(params, dict):
            await report(progress, params)
        return False

    async def _post(self, message: Message, headers: dict[str, str]) -> None:
        """Send a message that needs no answer."""
        with suppress(aiohttp.ClientError, OSError):
            async with (
                asyncio.timeout(NOTICE_SECONDS),
                self._session.post(
                    self._url, data=json.dumps(message).encode(), headers=headers, allow_redirects=False
                ),
            ):
                pass
