"""Requests of our own on the line of a command, past the SDK's session, whose streams and checks cost more than a call.

The SDK keeps the connection: it shakes hands, reads the list and takes every message that answers no request of ours.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
from mcp import MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CONNECTION_CLOSED

NOT_SENT = -32_091
"""JSON-RPC code of a request that never reached the server."""
MAX_PROGRESS = 100
"""Progress notifications of a call that wait for its caller; further ones are dropped."""
_FIRST_ID = 1_000_000_000
"""The SDK counts its requests from zero."""
_ids = itertools.count(_FIRST_ID)
Message = dict[str, Any]


class Requests(Protocol):
    """Sends requests to a server."""

    async def send(self, message: Message, headers: Mapping[str, str], progress: ProgressFnT | None) -> Any:
        """The result of a request; raises MCPError. Cancelled, it informs the server."""
        ...


def make_request(method: str, params: Message) -> Message:
    """A JSON-RPC request with an id of its own."""
    return {"jsonrpc": "2.0", "id": next(_ids), "method": method, "params": params}


def cancellation(message: Message) -> Message:
    """The notification that a request is cancelled."""
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": message["id"]}}


def result_of(answer: Mapping[str, Any]) -> Any:
    """The result in an answer; raises MCPError for an error."""
    if "error" not in answer:
        return answer.get("result")
    error = answer["error"] if isinstance(answer["error"], dict) else {}
    code, message = error.get("code"), error.get("message")
    raise MCPError(code if isinstance(code, int) else 0, message if isinstance(message, str) else "no reason given")


async def report(progress: ProgressFnT, params: Mapping[str, Any]) -> None:
    """Pass a progress notification on; one that is wrong, or whose caller has left, is dropped."""
    with suppress(TypeError, ValueError, KeyError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        total, message = params.get("total"), params.get("message")
        await progress(
            float(params["progress"]),
            float(total) if isinstance(total, int | float) else None,
            message if isinstance(message, str) else None,
        )


class Background:
    """Tasks that nothing waits for."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


@dataclass(slots=True)
class _Pending:
    answer: asyncio.Future[Message]
    progress: ProgressFnT | None
    reports: set[asyncio.Task[None]] = field(default_factory=set)


class StdioRequests:
    """Requests to a command, whose lines the transport reads."""

    def __init__(self) -> None:
        self._pending: dict[Any, _Pending] = {}
        self._write: Callable[[bytes], Awaitable[None]] | None = None
        self._background = Background()

    def open(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Take requests, and write them as lines."""
        self._write = write

    def close(self) -> None:
        """Fail the requests that wait: the command's output has ended."""
        self._write = None
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(MCPError(CONNECTION_CLOSED, "the connection is closed"))

    async def send(self, message: Message, headers: Mapping[str, str], progress: ProgressFnT | None) -> Any:
        if self._write is None:
            raise MCPError(NOT_SENT, "the connection is closed")
        pending = _Pending(asyncio.get_running_loop().create_future(), progress)
        self._pending[message["id"]] = pending
        try:
            await self._write(json.dumps(message).encode() + b"\n")
            answer = await pending.answer
            if pending.reports:
                await asyncio.wait(pending.reports)
            return result_of(answer)
        except asyncio.CancelledError:
            self._background.start(self._cancel(message))
            raise
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            raise MCPError(CONNECTION_CLOSED, "the connection is closed") from None
        finally:
            del self._pending[message["id"]]

    def take(self, message: Any) -> bool:
        """True if a message from the command answers a request of ours, or reports its progress."""
        if not isinstance(message, dict):
            return False
        if "method" not in message:
            identity = message.get("id")
            pending = self._pending.get(identity) if isinstance(identity, int) else None
            if pending is not None and not pending.answer.done():
                pending.answer.set_result(message)
            return isinstance(identity, int) and identity >= _FIRST_ID
        params = message.get("params")
        if message["method"] != "notifications/progress" or not isinstance(params, dict):
            return False
        token = params.get("progressToken")
        waiting = self._pending.get(token) if isinstance(token, int) else None
        if waiting is None or waiting.progress is None:
            return False
        if len(waiting.reports) < MAX_PROGRESS:
            task = self._background.start(report(waiting.progress, params))
            waiting.reports.add(task)
            task.add_done_callback(waiting.reports.discard)
        return True

    async def _cancel(self, message: Message) -> None:
        if self._write is not None:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                await self._write(json.dumps(cancellation(message)).encode() + b"\n")
