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
EARLY, LATE = "2025-03-26", "2025-11-25"


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
