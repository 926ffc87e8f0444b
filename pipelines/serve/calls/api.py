"""Call the operations of an HTTP API from its OpenAPI document: one host, no redirects, bounded in bytes and time."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Mapping
from typing import Any

import httpx2
import mcp_types as types

from pipelines.serve.bounds.fairness import current_caller
from pipelines.serve.bounds.places import FairPlaces
from pipelines.serve.calls.api_request import add_credentials, build_request
from pipelines.serve.calls.outcomes import CallFailure
from pipelines.serve.calls.settings import ApiSource
from pipelines.serve.catalogue.fetch import check_url
from pipelines.serve.catalogue.mcp_client import PinnedTransport
from pipelines.serve.errors import Refusal
from pipelines.serve.settings import ImportRules
from retrievers.types import Tool

ADDRESS_SECONDS = 300.0
"""Seconds until the host's address is resolved and checked again."""


class ApiUpstream:
    """One HTTP API."""

    def __init__(self, source: ApiSource, rules: ImportRules) -> None:
        """`rules`: of imports; they decide about private addresses and bytes."""
        self.source, self._rules = source, rules
        self._host = httpx2.URL(source.url).host
        self._client: tuple[float, httpx2.AsyncClient] | None = None
        self._places = FairPlaces(source.concurrent)
        self.error = ""
        """Why the last call failed to reach the API; empty: it did not fail."""

    @property
    def running(self) -> int:
        """Calls without an answer."""
        return self._places.taken

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> types.CallToolResult:
        """Send one request, and return the answer as a tool's result."""
        name, facts = self.source.provider, json.loads(tool.call)
        server = httpx2.URL(str(facts.get("server") or "/"))
        if server.host and server.host != self._host:
            raise CallFailure("not_callable", f"this tool is at {server.host}, and only {self._host} may be called")
        request = build_request(facts, arguments)
        secret = os.environ.get(self.source.key_variable, "").strip() if self.source.key_variable else ""
        add_credentials(request, facts.get("security"), secret, name)
        if not self._places.take(caller := current_caller()):
            raise CallFailure("busy", f"{name} is running {self.running} calls; try again later")
        try:
            async with asyncio.timeout(self.source.seconds):
                client = await self._connected()
                async with client.stream(
                    request.method,
                    request.url(self.source.url),
                    headers={"Accept": "application/json, */*;q=0.5", **request.all_headers()},
                    content=request.body,
                ) as response:
                    data = await response.aread()
            self.error = ""
            return to_result(response.status_code, response.headers.get("content-type", ""), data)
        except (TimeoutError, httpx2.HTTPError, httpx2.StreamError) as error:
            raise self._failure(error) from None
        finally:
            self._places.leave(caller)

    async def close(self) -> None:
        if self._client is not None:
            await self._client[1].aclose()
            self._client = None

    async def _connected(self) -> httpx2.AsyncClient:
        """The client, pinned to an address that was checked not long ago."""
        now = time.monotonic()
        if self._client is None or self._client[0] < now:
            rules = ImportRules(hosts=(self._host,), allow_private=self._rules.allow_private)
            try:
                parts, address = await asyncio.to_thread(check_url, self.source.url, rules)
            except Refusal as refusal:
                self.error = refusal.message
                raise CallFailure("unavailable", f"{self.source.provider}: {refusal.message}") from None
            transport = PinnedTransport(parts.host, address, self._rules.bytes)
            client = httpx2.AsyncClient(transport=transport, timeout=self.source.seconds, trust_env=False)
            self._client = now + ADDRESS_SECONDS, client  # an older client ends with its last request
        return self._client[1]

    def _failure(self, error: Exception) -> CallFailure:
        name, maybe = self.source.provider, "the call may have been carried out"
        if isinstance(error, httpx2.StreamError):
            return CallFailure("too_large", f"{name} answered with more than {self._rules.bytes} bytes; ask for less")
        if isinstance(error, httpx2.UnsupportedProtocol):
            return CallFailure("upstream_error", f"{name} redirects, which is not followed; {maybe}")
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            self.error = "it refuses the connection"
            message = f"{name} cannot be reached now; the call was not sent, try again later"
            return CallFailure("unavailable", message)
        if isinstance(error, TimeoutError | httpx2.TimeoutException):
            return CallFailure("timeout", f"{name} did not answer within {self.source.seconds:g} s; {maybe}")
        return CallFailure("lost", f"the connection to {name} broke during the call; {maybe}")


def to_result(status: int, media_type: str, data: bytes) -> types.CallToolResult:
    """An HTTP answer as the result of a tool; 400 and above are errors."""
    media, failed = media_type.partition(";")[0].strip().lower(), status >= 400
    if media.startswith(("image/", "audio/")) and not failed:
        encoded = base64.b64encode(data).decode()
        kind = types.ImageContent if media.startswith("image/") else types.AudioContent
        part = kind(type=media.partition("/")[0], data=encoded, mime_type=media)  # type: ignore[arg-type]
        return types.CallToolResult(content=[part])
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = f"{len(data)} bytes of {media or 'unknown type'}, which are not text"
    structured: dict[str, Any] | None = None
    if "json" in media:
        try:
            value = json.loads(text)
            structured = value if isinstance(value, dict) else {"result": value}
        except (ValueError, RecursionError):
            structured = None
    shown = f"HTTP {status}: {text}" if failed or not text else text
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=shown)]
    return types.CallToolResult(content=content, structured_content=structured, is_error=failed)
