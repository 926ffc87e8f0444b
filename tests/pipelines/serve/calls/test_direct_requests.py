"""Requests past the SDK: everything that a server may answer over HTTP, and what is left to the SDK at /mcp."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR

from pipelines.serve.catalogue import http_requests
from pipelines.serve.catalogue.http_requests import HttpRequests
from pipelines.serve.catalogue.stdio_requests import NOT_SENT, StdioRequests, make_request
from pipelines.serve.catalogue.stdio_transport import TOO_LARGE
from pipelines.serve.mcp.direct_calls import DirectCall, read_call, read_call_message

LOCAL = ipaddress.ip_address("127.0.0.1")
EARLIER = {"mcp-protocol-version": "2025-06-18"}
VERSION = "2026-07-28"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def event(message: dict[str, Any], identity: str = "") -> bytes:
    return (f"id: {identity}\n" if identity else "").encode() + f"data: {json.dumps(message)}\r\n\r\n".encode()


class EarlierServer:
    """A server of earlier protocols: it streams, asks back, and ends the stream before the answer."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.calls = 0
        self.changes = 0

    async def post(self, request: web.Request) -> web.StreamResponse:
        message = await request.json()
        if message.get("method") != "tools/call":
            self.posted.append(message)
            return web.Response(status=202)
        self.calls += 1
        match message["params"]["name"]:
            case "hang":
                await asyncio.sleep(60)
            case "large":
                return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": {"text": "x" * 20_000}})
            case "forgotten":
                return web.Response(status=404)
            case "moved":
                raise web.HTTPFound("http://127.0.0.1:9/")
            case "broken":
                return web.Response(status=500, text="<html>")
            case "refused":
                error = {"code": -32602, "message": "no such tool"}
                return web.json_response({"jsonrpc": "2.0", "id": None, "error": error}, status=400)
            case "cut":
                assert request.transport is not None
                request.transport.abort()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        token = message["params"]["_meta"]["progressToken"]
        notices: list[dict[str, Any]] = [
            {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1, "total": 2}},
            {"method": "notifications/progress", "params": {"progressToken": token, "progress": "wrong"}},
            {"method": "notifications/tools/list_changed"},
            {"id": "p1", "method": "ping"},
            {"id": "e1", "method": "elicitation/create", "params": {}},
        ]
        for number, notice in enumerate(notices):
            await response.write(event({"jsonrpc": "2.0", **notice}, f"event-{number}"))
        return response  # without the answer

    async def get(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Last-Event-ID"] == "event-4"
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": comment\r\n\r\n" + event({"jsonrpc": "2.0", "id": 1, "result": {"late": True}}))
        return response

    async def count_change(self) -> None:
        self.changes += 1


async def with_server(work: Callable[[EarlierServer, HttpRequests], Awaitable[Any]], session: str = "s1") -> Any:
    server, app = EarlierServer(), web.Application()
    app.router.add_post("/mcp", server.post)
    app.router.add_get("/mcp", server.get)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    requests = HttpRequests(url, LOCAL, "key", 10_000, 5.0, lambda: session, server.count_change)
    try:
        return await work(server, requests)
    finally:
        await requests.close()
        await runner.cleanup()


def test_a_stream_is_read_to_the_answer_and_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_requests, "RESUME_SECONDS", 0.01)
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async def work(server: EarlierServer, requests: HttpRequests) -> Any:
        message = make_request("tools/call", {"name": "stream"})
        message["params"]["_meta"] = {"progressToken": message["id"]}
        result = await requests.send(message, EARLIER, on_progress)
        while len(server.posted) < 2:
            await asyncio.sleep(0.01)
        return result, server

    result, server = asyncio.run(with_server(work))
    assert result == {"late": True}
    assert seen == [(1.0, 2.0, None)]
    assert server.changes == 1
    answers = {answer["id"]: answer for answer in server.posted}
    assert answers["p1"]["result"] == {}
    assert "error" in answers["e1"]


@pytest.mark.parametrize(
    ("tool", "code"),
    [("large", TOO_LARGE), ("forgotten", NOT_SENT), ("moved", INTERNAL_ERROR), ("broken", INTERNAL_ERROR),
     ("refused", -32602), ("cut", CONNECTION_CLOSED)],
)  # fmt: skip
def test_a_request_that_fails_says_how_and_is_sent_once(tool: str, code: int) -> None:
    async def work(server: EarlierServer, requests: HttpRequests) -> int:
        with pytest.raises(MCPError) as failure:
            await requests.send(make_request("tools/call", {"name": tool}), EARLIER, None)
        assert failure.value.code == code
        return server.calls

    assert asyncio.run(with_server(work)) == 1


def test_a_server_of_an_earlier_protocol_is_informed_of_a_cancellation() -> None:
    async def work(server: EarlierServer, requests: HttpRequests) -> None:
        message = make_request("tools/call", {"name": "hang"})
        task = asyncio.create_task(requests.send(message, EARLIER, None))
        while not server.calls:
            await asyncio.sleep(0.01)
        task.cancel()
        while not server.posted:
            await asyncio.sleep(0.01)
        assert server.posted[0]["params"] == {"requestId": message["id"]}

    asyncio.run(with_server(work))


def test_nothing_is_sent_to_a_server_that_is_away() -> None:
    async def work() -> None:
        requests = HttpRequests(
            "http://127.0.0.1:9/mcp", LOCAL, "", 10_000, 5.0, lambda: "", EarlierServer().count_change
        )
        with pytest.raises(MCPError) as failure:
            await requests.send(make_request("tools/call", {"name": "x"}), {}, None)
        assert failure.value.code == NOT_SENT
        await requests.close()
        with pytest.raises(MCPError) as closed:
            await StdioRequests().send(make_request("tools/call", {"name": "x"}), {}, None)
        assert closed.value.code == NOT_SENT

    asyncio.run(work())


def test_messages_that_answer_no_request_of_ours_are_left_to_the_sdk() -> None:
    requests = StdioRequests()
    late = make_request("tools/call", {})["id"]
    assert requests.take({"jsonrpc": "2.0", "id": late, "result": {}})  # an answer that came too late
    for message in (
        None,
        [],
        {"id": 3, "result": {}},
        {"id": "x", "result": {}},
        {"id": [1], "result": {}},
        {"method": "notifications/progress", "params": {"progressToken": 5, "progress": 1}},
        {"method": "notifications/progress", "params": {"progressToken": [5]}},
        {"method": "notifications/tools/list_changed"},
    ):
        assert not requests.take(message)


def modern(**changes: Any) -> tuple[list[tuple[bytes, bytes]], bytes]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
        **changes.pop("meta", {}),
    }
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": VERSION,
               "mcp-method": "tools/call", "mcp-name": "call_tool", **changes.pop("headers", {})}  # fmt: skip
    params = {"name": "call_tool", "arguments": {"id": "a"}, "_meta": meta, **changes.pop("params", {})}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params, **changes}
    return [(name.encode(), value.encode()) for name, value in headers.items()], json.dumps(body).encode()


def read(headers: list[tuple[bytes, bytes]], body: bytes) -> DirectCall | None:
    data = read_call_message(body)
    return None if data is None else read_call(headers, data)


def test_a_call_is_read_without_the_sdk() -> None:
    call = read(*modern())
    assert call is not None
    assert (call.id, call.name, call.arguments, call.version) == (1, "call_tool", {"id": "a"}, VERSION)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": None},
        {"id": True},
        {"jsonrpc": "1.0"},
        {"params": {"arguments": []}},
        {"params": {"name": 7}},
        {"params": {"_meta": []}},
        {"meta": {"progressToken": 1}},
        {"meta": {"io.modelcontextprotocol/clientCapabilities": 1}},
        {"meta": {"io.modelcontextprotocol/protocolVersion": "1999-01-01"}},
        {"headers": {"accept": "application/json"}},
        {"headers": {"mcp-name": "search_tools"}},
        {"headers": {"mcp-protocol-version": "1999-01-01"}},
        {"headers": {"mcp-session-id": "s"}},
    ],
)
def test_what_is_not_certain_is_left_to_the_sdk(changes: dict[str, Any]) -> None:
    assert read(*modern(**changes)) is None
    assert read(modern()[0], b'["tools/call"]') is None
    assert read(modern()[0], b'{"tools/call"') is None
