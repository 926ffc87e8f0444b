"""An MCP server behind the gateway: one connection that its list is read from and calls are sent over.

A call is sent at most once. It waits for a server that is starting or was restarted; once it was sent, it is never
repeated, and an answer that is missing is reported as such.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import mcp_types as types
from mcp import MCPError
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT
from pydantic import Discriminator, Tag, TypeAdapter, ValidationError

from pipelines.serve.bounds.fairness import current_caller
from pipelines.serve.bounds.places import FairPlaces
from pipelines.serve.calls.outcomes import CallFailure
from pipelines.serve.catalogue.mcp_client import McpConnection
from pipelines.serve.catalogue.mcp_sync import McpFollower, ToolTarget
from pipelines.serve.catalogue.stdio_requests import NOT_SENT, make_request
from pipelines.serve.catalogue.stdio_transport import TOO_LARGE
from pipelines.serve.metrics import Metrics
from pipelines.serve.settings import ImportRules, McpSource
from retrievers.types import Tool

START_SECONDS = 10.0
"""Seconds that a call waits for a server that is not connected."""
ATTEMPTS = 3
"""Attempts to send a call; only one that did not reach the server is followed by another."""
MAX_MESSAGE = 500
"""Characters of a server's error message that are passed on."""
State = Literal["starting", "up", "down"]


def _result_type(value: Any) -> Any:
    return value.get("resultType") if isinstance(value, dict) else None


_Answer = Annotated[
    Annotated[types.CallToolResult, Tag("complete")] | Annotated[types.InputRequiredResult, Tag("input_required")],
    Discriminator(lambda value: "input_required" if _result_type(value) == "input_required" else "complete"),
]
_ANSWER: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(_Answer)
log = logging.getLogger("rewrite-serve")


class McpUpstream(McpFollower):
    """Follows one server's list, and forwards calls to it."""

    def __init__(self, source: McpSource, rules: ImportRules, catalogue: ToolTarget, metrics: Metrics) -> None:
        super().__init__(source, rules, catalogue)
        self.source, self._metrics = source, metrics
        self.tools: dict[str, Tool] = {}
        """The tools of its newest list, by the server's own names."""
        self.starts = 0
        """Connections so far; each of a command is a start."""
        self._places = FairPlaces(source.concurrent)
        self._connection: McpConnection | None = None
        self._connected, self._closed, self._wanted = asyncio.Event(), asyncio.Event(), asyncio.Event()
        metrics.upstream_up.labels(source.name).set(0)

    @property
    def running(self) -> int:
        """Calls without an answer."""
        return self._places.taken

    @property
    def state(self) -> State:
        """`up`: calls can be sent now."""
        return "up" if self._connection is not None else "down" if self.starts or self.error else "starting"

    async def call(self, tool: str, arguments: Mapping[str, Any], progress: ProgressFnT | None) -> types.CallToolResult:
        """Forward a call to the tool of this name, and return its result as it is."""
        name = self.source.name
        if not self._places.take(caller := current_caller()):
            raise CallFailure("busy", f"{name} is running {self.running} calls; try again later")
        deadline = time.monotonic() + self.source.seconds
        try:
            for _ in range(ATTEMPTS):
                connection = await self._wait(min(deadline, time.monotonic() + START_SECONDS))
                if tool not in self.tools:
                    raise CallFailure("not_callable", f"{name} no longer has this tool; search again")
                try:
                    return await self._send(connection, tool, arguments, progress, deadline - time.monotonic())
                except MCPError as error:
                    if error.code != NOT_SENT:
                        raise self._failure(error) from None
                    self._drop(connection)
            raise self._unavailable()
        finally:
            self._places.leave(caller)

    async def _send(
        self,
        connection: McpConnection,
        tool: str,
        arguments: Mapping[str, Any],
        progress: ProgressFnT | None,
        seconds: float,
    ) -> types.CallToolResult:
        """Send one request past the SDK's session, which takes longer than many a tool and checks output schemas."""
        message = make_request("tools/call", {"name": tool, "arguments": arguments})
        options: CallOptions = {}
        connection.client.session._stamp(message, options)
        if progress is not None:
            message["params"].setdefault("_meta", {})["progressToken"] = message["id"]
        try:
            async with asyncio.timeout(max(0.001, seconds)):
                answer = await connection.requests.send(message, options.get("headers", {}), progress)
            result = _ANSWER.validate_python(answer, by_name=False)
        except TimeoutError:
            raise self._failure(MCPError(REQUEST_TIMEOUT, "")) from None
        except ValidationError:
            why = f"{self.source.name} answered with something that is no result of a tool"
            raise CallFailure("upstream_error", why) from None
        if isinstance(result, types.CallToolResult):
            return result
        raise CallFailure(
            "upstream_error", f"this tool of {self.source.name} asks its user for input, which is not passed on here"
        )

    def _failure(self, error: MCPError) -> CallFailure:
        name, maybe = self.source.name, "the call may have been carried out"
        if error.code == REQUEST_TIMEOUT:
            return CallFailure("timeout", f"{name} did not answer within {self.source.seconds:g} s; {maybe}")
        if error.code == CONNECTION_CLOSED:
            return CallFailure("lost", f"the connection to {name} broke during the call; {maybe}")
        if error.code == TOO_LARGE:
            limit = self._rules.bytes
            return CallFailure("too_large", f"{name} answered with more than {limit} bytes; ask for less, {maybe}")
        return CallFailure("upstream_error", f"{name} refused the call: {error.message[:MAX_MESSAGE]}")

    def _unavailable(self) -> CallFailure:
        why = f" ({self.error})" if self.error else ""
        message = f"{self.source.name} cannot be reached now{why}; the call was not sent, try again later"
        return CallFailure("unavailable", message)

    async def _wait(self, deadline: float) -> McpConnection:
        """The connection; a server that is down is tried again at once."""
        while self._connection is None:
            self._wanted.set()
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await self._connected.wait()
            except TimeoutError:
                raise self._unavailable() from None
        return self._connection

    async def _follow(self, connection: McpConnection) -> None:
        """Follow until the connection breaks."""
        self._closed.clear()
        following, closing = asyncio.create_task(super()._follow(connection)), asyncio.create_task(self._closed.wait())
        self._opened = connection
        try:
            done, _ = await asyncio.wait({following, closing}, return_when=asyncio.FIRST_COMPLETED)
            if following in done:
                await following  # raises what ended it
            else:
                self.error = "the connection broke"
                log.warning("MCP server %s: %s; it is started again", self.source.name, self.error)
        finally:
            self._drop(connection)
            for task in (following, closing):
                task.cancel()
            await asyncio.gather(following, closing, return_exceptions=True)

    async def _sync(self, tools: Sequence[Tool]) -> None:
        """Take a list; the first one of a connection shows that the server works."""
        self.tools = {tool.name: tool for tool in tools}
        if self._connection is None and not self._closed.is_set():
            self._connection, self.starts = self._opened, self.starts + 1
            self._metrics.upstream_up.labels(self.source.name).set(1)
            self._metrics.upstream_starts.labels(self.source.name).inc()
            self._connected.set()
        await super()._sync(tools)

    def _drop(self, connection: McpConnection) -> None:
        """Take no more calls over this connection."""
        if self._connection is connection:
            self._connection = None
            self._metrics.upstream_up.labels(self.source.name).set(0)
            self._connected.clear()
            self._closed.set()

    def _on_close(self) -> None:
        if self._connection is not None:
            self._drop(self._connection)
        self._closed.set()

    async def _rest(self, seconds: float) -> None:
        """Pause before the next attempt, shortened if a call waits for the server."""
        first = min(seconds, 0.2 if self._pause == 1.0 else 1.0)  # longer from the second failure in a row
        await asyncio.sleep(first)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - first):
                await self._wanted.wait()
        self._wanted.clear()
