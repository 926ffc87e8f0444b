"""Answers searches and calls of tools at /mcp without the SDK's server, whose tasks, streams and checks cost more than
either, all of it on the event loop.

Only what is certain is taken: one `tools/call`, and without progress if its tool is forwarded. The SDK answers the
rest, every mistake in the envelope included. A call that takes long is answered as a stream, so that proxies keep it
open.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import mcp_types as types
from mcp.shared.inbound import (
    MCP_PROTOCOL_VERSION_HEADER,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
)
from mcp_types import DEFAULT_NEGOTIATED_VERSION, SERVER_INFO_META_KEY, methods
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from pipelines.serve.errors import FAULT, Refusal
from pipelines.serve.http.asgi import Message, Receive, Send
from pipelines.serve.http.leaving import CallerLeft, while_connected
from pipelines.serve.mcp.server import failure

PING_SECONDS = 15.0
"""Seconds after which a call is answered as a stream, and between signs of life on it."""
PING = b": ping\r\n\r\n"
SEARCHES = {"search_tools", "get_tool"}
"""Tools of the gateway itself that answer soon and report no progress: neither a stream nor a session matters."""
_STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
log = logging.getLogger("rewrite-serve")


@dataclass(frozen=True, slots=True)
class DirectCall:
    """A `tools/call` request."""

    id: int | str
    name: str
    arguments: dict[str, Any]
    version: str
    streams: bool = True
    """True if the caller takes a stream."""


def read_headers(pairs: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers by name; of several with one name the first, which is the one that the SDK reads."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(pairs)}


def read_call_message(body: bytes) -> dict[str, Any] | None:
    """The JSON of a `tools/call`; None: it is something else. JSON has several ways to write the method."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) and data.get("method") == "tools/call" else None


def read_call(pairs: list[tuple[bytes, bytes]], data: dict[str, Any]) -> DirectCall | None:
    """The call of a `tools/call` request; None: the SDK must read it.

    Headers `Mcp-Param-*` change nothing: they count for properties that a schema marks with `x-mcp-header`, and the
    gateway's own tools have none.
    """
    headers = read_headers(pairs)
    version, params = _version(data, headers, pairs), data.get("params")
    if version is None or not isinstance(params, dict):
        return None
    identity, name, arguments, meta = data.get("id"), params.get("name"), params.get("arguments"), params.get("_meta")
    if data.get("jsonrpc") != "2.0" or not isinstance(name, str):
        return None
    if not isinstance(identity, int | str) or isinstance(identity, bool):
        return None
    if not isinstance(arguments, dict | None) or not isinstance(meta, dict | None):
        return None
    takes_json, streams = _accepted(headers.get("accept", ""))
    has_more = not streams or "mcp-session-id" in headers or "progressToken" in (meta or {})
    if not takes_json or (has_more and name not in SEARCHES):
        return None
    return DirectCall(identity, name, arguments or {}, version, streams)


def _accepted(header: str) -> tuple[bool, bool]:
    """True for JSON, and for a stream, if the caller accepts it."""
    kinds = {kind.partition(";")[0].strip().lower() for kind in header.split(",")}
    return not kinds.isdisjoint({"application/json", "application/*", "*/*"}), "text/event-stream" in kinds


def _version(data: dict[str, Any], headers: Mapping[str, str], pairs: list[tuple[bytes, bytes]]) -> str | None:
    """The protocol version of a valid envelope; None if it is not certain."""
    stated = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    if stated is None or stated in HANDSHAKE_PROTOCOL_VERSIONS:
        return stated or DEFAULT_NEGOTIATED_VERSION
    if find_duplicated_routing_header((name.decode("latin-1"), "") for name, _ in pairs):
        return None
    verdict = classify_inbound_request(data, headers=headers)
    if isinstance(verdict, InboundLadderRejection) or not isinstance(verdict.client_capabilities, dict):
        return None
    return verdict.protocol_version


class DirectAnswer:
    """The answer to a call, as JSON, or as a stream once it takes long."""

    def __init__(
        self,
        call: DirectCall,
        server_info: dict[str, Any],
        send: Send,
        serialize_large: Callable[[Callable[[], bytes]], Awaitable[bytes]],
    ) -> None:
        """`serialize_large`: does the work of a large answer away from the event loop."""
        self._call, self._server_info, self._send, self._serialize_large = call, server_info, send, serialize_large
        self._pinging: asyncio.Task[None] | None = None
        self._streams = False

    async def answer(self, work: Awaitable[BaseModel], receive: Receive, is_large: Callable[[BaseModel], bool]) -> None:
        """Run the work while its caller is there, and send its result."""
        timer = asyncio.get_running_loop().call_later(PING_SECONDS, self._start_pinging) if self._call.streams else None
        try:
            body = await self._run(work, receive, is_large)
        finally:
            if timer is not None:
                timer.cancel()
            if self._pinging is not None:
                self._pinging.cancel()
                await asyncio.wait({self._pinging})
        if self._streams:
            body = b"event: message\r\ndata: " + body + b"\r\n\r\n"
        else:
            length = str(len(body)).encode()
            await self._start([(b"content-type", b"application/json"), (b"content-length", length)])
        await self._send({"type": "http.response.body", "body": body})

    async def _run(self, work: Awaitable[BaseModel], receive: Receive, is_large: Callable[[BaseModel], bool]) -> bytes:
        """The JSON-RPC answer. A bug is an answer too: a stream may have begun, which cannot become an HTTP error."""
        try:
            made = await while_connected(receive, work)
            serialize = partial(self._serialize, made)
            return await self._write_large(made, serialize) if is_large(made) else serialize()
        except CallerLeft:
            raise
        except Exception:
            log.exception("a call at /mcp failed")
            error = {"code": types.INTERNAL_ERROR, "message": FAULT}
            return json.dumps({"jsonrpc": "2.0", "id": self._call.id, "error": error}).encode()

    async def _write_large(self, made: BaseModel, serialize: Callable[[], bytes]) -> bytes:
        try:
            return await self._serialize_large(serialize)
        except Refusal as refusal:  # too many results wait to be written
            if isinstance(made, types.CallToolResult):  # the call has been carried out, and must not be repeated
                return serialize()
            return self._serialize(failure(refusal.message))

    def _start_pinging(self) -> None:
        self._pinging = asyncio.create_task(self._ping())

    async def _ping(self) -> None:
        self._streams = True
        await self._start(_STREAM)
        while True:
            await self._send({"type": "http.response.body", "body": PING, "more_body": True})
            await asyncio.sleep(PING_SECONDS)

    async def _start(self, headers: list[tuple[bytes, bytes]]) -> None:
        start: Message = {"type": "http.response.start", "status": 200, "headers": headers}
        await self._send(start)

    def _serialize(self, made: BaseModel) -> bytes:
        """The JSON-RPC answer, with the fields of the caller's protocol version."""
        if isinstance(made, types.CallToolResult):
            result = json.dumps(self._shown(made), separators=(",", ":"))
        else:
            result = self._serialize_content(made.model_dump_json(by_alias=True))
        return f'{{"jsonrpc":"2.0","id":{json.dumps(self._call.id)},"result":{result}}}'.encode()

    def _serialize_content(self, content: str) -> str:
        """A result with this JSON as structured content and as text. The SDK's models would write it three times."""
        rest = self._shown(types.CallToolResult(content=[]))
        del rest["content"]
        fields = json.dumps(rest, separators=(",", ":"))[1:]
        text = f'{{"type":"text","text":{json.dumps(content)}}}'
        return f'{{"content":[{text}],"structuredContent":{content}{"," * bool(rest)}{fields}'

    def _shown(self, result: types.CallToolResult) -> dict[str, Any]:
        """The fields of a result in the caller's version."""
        version = self._call.version
        dumped = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        try:
            shown = methods.serialize_server_result("tools/call", version, dumped)
        except ValidationError:  # such as sound, which the earliest versions do not have
            text = f"the tool's result cannot be expressed in version {version} of the protocol"
            shown = {"content": [{"type": "text", "text": text}], "isError": True}
        if version in MODERN_PROTOCOL_VERSIONS:
            shown["resultType"] = "complete"
            shown["_meta"] = {SERVER_INFO_META_KEY: self._server_info, **(shown.get("_meta") or {})}
        return shown
