"""The MCP server as a route of the gateway, /mcp: stateless, so that every request stands for itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from pipelines.serve.errors import Refusal
from pipelines.serve.gateway import Gateway
from pipelines.serve.http.asgi import Message, Receive, Send
from pipelines.serve.http.guard import send_refusal
from pipelines.serve.mcp.direct_calls import SEARCHES, DirectAnswer, read_call, read_call_message, read_headers
from pipelines.serve.mcp.listed_tools import ListedTools
from pipelines.serve.mcp.server import is_large, make_result, make_server

CALL = "call_tool"


class McpRoute:
    """The MCP server as a route of the gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._listed = gateway, ListedTools(gateway)
        server = make_server(gateway, self._listed)
        self._server_info = server.server_info_stamp
        self._plain, self._streaming = (
            StreamableHTTPSessionManager(
                server,
                json_response=json_response,
                stateless=True,
                max_request_body_size=gateway.config.limits.bytes,  # the guard checks it too
            )
            for json_response in (True, False)
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Answer requests inside this context."""
        watching = asyncio.create_task(self._listed.watch())
        try:
            async with self._plain.run(), self._streaming.run():
                yield
        finally:
            watching.cancel()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request. Pages of other origins are refused, as the protocol demands."""
        headers = read_headers(scope["headers"])
        origin, host = headers.get("origin", ""), headers.get("host", "")
        if origin and origin.partition("://")[2] != host:
            await send_refusal(send, Refusal(403, "forbidden", "web pages from elsewhere may not call this"))
            return
        first = await receive()  # the guard has read the whole body
        messages = iter([first])

        async def replay() -> Message:
            return next(messages, None) or await receive()

        data = read_call_message(first.get("body", b""))
        if data is not None and await self._answer_call(scope, data, replay, send):
            return
        # Calls with progress are answered as streams if the client takes them; leaving cancels.
        streams = data is not None and "text/event-stream" in headers.get("accept", "")
        await (self._streaming if streams else self._plain).handle_request(scope, replay, send)

    async def _answer_call(self, scope: Message, data: dict[str, Any], receive: Receive, send: Send) -> bool:
        """Answer a search or a call of a tool without the SDK; False: it is something else."""
        call, caller = read_call(scope["headers"], data), scope["state"]["caller"]
        if call is None or (call.name == "search_tools" and self._listed.keeps_searches(caller)):
            return False
        name, arguments = call.name, call.arguments
        if name not in SEARCHES and name != CALL:
            tool = await self._listed.resolve(name)
            if tool is None:
                return False
            name, arguments = CALL, {"id": tool, "arguments": arguments}
        work = make_result(self._gateway, caller, name, arguments, None)
        answer = DirectAnswer(call, self._server_info, send, self._gateway.service.answers.run)
        await answer.answer(work, receive, is_large)
        return True
