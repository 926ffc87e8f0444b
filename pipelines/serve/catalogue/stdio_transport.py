"""Start an MCP server as a command and exchange lines of JSON with it, within limits.

A line that is too long fails the request that it answers, not the connection. Notifications beyond a rate are not read
until later, so a server that floods waits at its own pipe and costs its callers nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import mcp_types as types
from anyio.abc import Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from pydantic_core import from_json

from pipelines.serve.catalogue.stdio_requests import StdioRequests

CHUNK = 65_536
EDGE = 4_096
"""Bytes kept of both ends of a line that is too long."""
NOTIFICATIONS_PER_SECOND = 1_000.0
"""Messages that answer no request; two seconds' worth may arrive at once."""
EXIT_SECONDS = 2.0
TOO_LARGE = -32_090
"""JSON-RPC code of an answer that was discarded; from the range for implementations."""
_ID = rb'("[^"\\]{1,128}"|-?\d{1,18})'
_HEAD = re.compile(rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*' + _ID + rb"\s*,")
_TAIL = re.compile(rb',\s*"id"\s*:\s*' + _ID + rb"\s*\}\s*\Z")
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
log = logging.getLogger("rewrite-serve")


@dataclass(frozen=True, slots=True)
class LongLine:
    """Both ends of a line that exceeded the limit."""

    head: bytes
    tail: bytes

    def request_id(self) -> int | str | None:
        """The id of the request that this line answers; None: it cannot be read off."""
        match = _HEAD.match(self.head) or _TAIL.search(self.tail)
        if match is None:
            return None
        text = match[1].decode("utf-8", "replace")
        return text[1:-1] if text.startswith('"') else int(text)


class LineSplitter:
    """Splits chunks into lines, holding at most `max_bytes` of one."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._head: bytes | None = None

    def feed(self, chunk: bytes) -> Iterator[bytes | LongLine]:
        """The lines that this chunk completes."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._add(end)
            yield self._take()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._max_bytes:
            joined = b"".join(self._parts)
            if self._head is None:
                self._head = joined[:EDGE]
            self._parts = [joined[-EDGE:]]

    def _take(self) -> bytes | LongLine:
        joined, head = b"".join(self._parts), self._head
        self._parts, self._size, self._head = [], 0, None
        return joined if head is None else LongLine(head, joined[-EDGE:])


class Throttle:
    """A bucket of messages that answer no request, which refills with time."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._clock = per_second, clock
        self._left, self._seen = 2 * per_second, clock()

    def delay(self) -> float:
        """Seconds to wait before the next notification is taken."""
        now = self._clock()
        self._left = min(2 * self._per_second, self._left + (now - self._seen) * self._per_second) - 1
        self._seen = now
        return max(0.0, -self._left / self._per_second)


@asynccontextmanager
async def stdio_transport(
    command: Sequence[str],
    environment: dict[str, str] | None,
    max_bytes: int,
    on_close: Callable[[], object],
    requests: StdioRequests,
) -> AsyncIterator[Streams]:
    """The streams of a started server. `on_close` is called once its output ends. `requests`: past the streams."""
    process = await anyio.open_process(
        list(command), env=get_default_environment() | (environment or {}), stderr=None, start_new_session=True
    )
    arriving, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    assert process.stdin is not None
    requests.open(process.stdin.send)

    async def read() -> None:
        try:
            async with arriving:
                await _read(process, arriving, LineSplitter(max_bytes), requests)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            pass  # the session or the server has gone
        finally:
            requests.close()
            on_close()

    async def write() -> None:
        assert process.stdin is not None
        try:
            async with leaving:
                async for message in leaving:
                    line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await process.stdin.send(line.encode() + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            await arriving.aclose()  # the session sees the end, and no request waits for ever

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                incoming.close()
                outgoing.close()
                await _stop(process)
            tasks.cancel_scope.cancel()


async def _read(
    process: Process, arriving: MemoryObjectSendStream[Any], splitter: LineSplitter, requests: StdioRequests
) -> None:
    assert process.stdout is not None
    throttle, warned = Throttle(NOTIFICATIONS_PER_SECOND), False
    with suppress(anyio.EndOfStream):
        while True:
            for line in splitter.feed(await process.stdout.receive(CHUNK)):
                data = _parse(line)
                is_answer = isinstance(data, dict) and "method" not in data and "id" in data
                if not is_answer and (delay := throttle.delay()):
                    await asyncio.sleep(delay)
                if requests.take(data):
                    continue
                if (message := _to_message(data)) is not None:
                    await arriving.send(SessionMessage(message))
                elif not warned:
                    warned = True
                    log.warning("an MCP server writes lines that are not JSON-RPC messages; they are skipped")


def _parse(line: bytes | LongLine) -> Any:
    """The JSON of a line; None for what is none, as servers that print to standard output write it."""
    if isinstance(line, LongLine):
        request = line.request_id()
        if request is None:
            raise ConnectionError("a message is too large, and it does not say which request it answers")
        error = {"code": TOO_LARGE, "message": "the answer is too large"}
        return {"jsonrpc": "2.0", "id": request, "error": error}
    try:
        return from_json(line)
    except (ValueError, RecursionError):
        return None


def _to_message(data: Any) -> types.JSONRPCMessage | None:
    """The message for the SDK's session; None if it is not one."""
    try:
        return types.jsonrpc_message_adapter.validate_python(data, by_name=False)
    except (ValueError, RecursionError):
        return None


async def _stop(process: Process) -> None:
    """Close the server's input, then end its whole process group: politely, then by force."""
    if process.stdin is not None:
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await process.stdin.aclose()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        deadline = time.monotonic() + EXIT_SECONDS
        while process.returncode is None and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        if process.returncode is not None:
            break
    with suppress(ProcessLookupError, PermissionError):  # children that outlived it
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(Exception):
        await process.aclose()
