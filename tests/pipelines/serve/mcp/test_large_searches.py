"""Searches with many tools at /mcp, from outside: the same tools as over HTTP, without keeping the event loop."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doubles import BM25_ONLY, plain_context, varied_tools
from serving import Running, running

from retrievers.index import build

K, ROUNDS = 150, 30
ACCEPT = "application/json, text/event-stream"
EARLY, LATE, MODERN = "2025-03-26", "2025-11-25", "2026-07-28"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large_searches") / "index"
    build(folder, varied_tools(4 * K), BM25_ONLY, plain_context())
    return folder


def call(
    server: Running, name: str, arguments: dict[str, Any], meta: dict[str, Any] | None = None, **headers: str
) -> Any:
    params = {"name": name, "arguments": arguments} | ({"_meta": meta} if meta else {})
    body = {"jsonrpc": "2.0", "id": 'a "call"', "method": "tools/call", "params": params}
    named = {name.replace("_", "-"): value for name, value in {"accept": ACCEPT, **headers}.items()}
    return server.client.post("/mcp", json=body, headers=named)


@pytest.mark.parametrize(
    "headers",
    [{}, {"accept": "*/*"}, {"accept": "application/json"}, {"mcp_session_id": "any"}, {"mcp_protocol_version": LATE}],
    ids=str,
)
def test_a_large_search_has_the_tools_of_one_over_http(index: Path, headers: dict[str, str]) -> None:
    query = {"query": "weather order", "k": K}
    with running({"index": str(index), "retriever": "bm25"}) as server:
        wanted = server.search("weather order", k=K)["results"][0]["tools"]
        answer = call(server, "search_tools", query, {"progressToken": 7}, **headers)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        body = answer.json()
        result = body.pop("result")
        assert body == {"jsonrpc": "2.0", "id": 'a "call"'}
        assert result["structuredContent"]["tools"] == wanted
        assert len(wanted) > 100
        assert [json.loads(part["text"]) for part in result["content"]] == [result["structuredContent"]]
        assert not result.get("isError")
        early = call(server, "search_tools", query, mcp_protocol_version=EARLY).json()["result"]
        assert early["structuredContent"]["tools"] == wanted
        assert json.loads(early["content"][0]["text"])["tools"] == wanted
        wrong = call(server, "search_tools", {"query": "x", "k": 0}, **headers).json()["result"]
        assert (wrong["isError"], wrong["content"][0]["text"][:2]) == (True, "k:")


def test_no_caller_chooses_the_costly_way(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_to_sdk: list[Any] = []

    async def handle(_: object, scope: Any, *__: Any) -> None:
        left_to_sdk.append(scope["headers"])
        raise RuntimeError

    monkeypatch.setattr("mcp.server.streamable_http_manager.StreamableHTTPSessionManager.handle_request", handle)
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "progressToken": 7,
    }
    params = {"name": "search_tools", "arguments": {"query": "weather", "k": 3}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    escaped = body.replace("tools/call", "\\u0074ools\\/call")
    usual = [("content-type", "application/json"), ("accept", "application/json")]
    modern = [("mcp-protocol-version", MODERN), ("mcp-method", "tools/call"), ("mcp-name", "search_tools")]
    with running({"index": str(index), "retriever": "bm25"}) as server:
        for sent, headers in (
            (escaped, []),
            (body, [("accept", "text/event-stream")]),
            (body, [("mcp-protocol-version", LATE), ("mcp-protocol-version", MODERN)]),
            (body, [*modern, ("mcp-param-x", "1")]),
            (escaped, [*modern, ("mcp-param-query", "other"), ("mcp-param-query", "weather"), ("accept", "*/*")]),
        ):
            answer = server.client.post("/mcp", content=sent, headers=[*usual, *headers])
            assert answer.status_code == 200, headers
            assert len(answer.json()["result"]["structuredContent"]["tools"]) == 3
    assert left_to_sdk == []


def test_no_argument_of_the_gateways_own_tools_is_sent_as_a_header(index: Path) -> None:
    with running({"index": str(index), "retriever": "bm25", "anonymous": ["search", "call"]}) as server:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        listed = server.client.post("/mcp", json=body, headers={"accept": ACCEPT})
    assert "search_tools" in listed.text
    assert "x-mcp-header" not in listed.text


def loop_seconds(server: Running, work: Callable[[], Any]) -> float:
    """CPU time of the event loop's thread during some work; other jobs of the machine do not count."""
    threads = [thread for thread in threading.enumerate() if getattr(thread, "_target", None)]
    [loop] = [thread for thread in threads if "Server.run" in repr(thread._target)]  # type: ignore[attr-defined]
    clock = time.pthread_getcpuclockid(loop.ident or 0)
    began = time.clock_gettime(clock)
    for _ in range(ROUNDS):
        work()
    return time.clock_gettime(clock) - began


def test_a_large_search_costs_the_event_loop_no_more_than_one_over_http(index: Path) -> None:
    with running({"index": str(index), "retriever": "bm25"}) as server:
        call(server, "search_tools", {"query": "weather"})  # loads the library
        over_http = loop_seconds(server, lambda: server.search("weather order", k=K))
        over_mcp = loop_seconds(server, lambda: call(server, "search_tools", {"query": "weather order", "k": K}))
        assert over_mcp < 1.5 * over_http
