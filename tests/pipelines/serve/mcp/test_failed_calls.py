"""What fails behind /mcp, from outside: a sentence or a JSON-RPC error; the result of a call is never lost."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hostile_mcp import make_server
from mcp_servers import over_http
from serving import Running
from waiting import until

from pipelines.serve import answers
from pipelines.serve.errors import overloaded
from pipelines.serve.mcp import direct_calls
from pipelines.serve.mcp import server as mcp_server
from retrievers.errors import StoreDown

Serve = Callable[..., Running]
THROUGH_SDK = {"anonymous": ["search", "call"], "calls": {"list_found": 5}}
"""A config with which the SDK answers searches: their tools come into the caller's list."""
LOCAL = {"hosts": ["127.0.0.1"], "allow_private": True, "seconds": 30.0, "bytes": 1_000_000}


def call(server: Running, name: str, **arguments: Any) -> httpx.Response:
    params = {"name": name, "arguments": arguments}
    body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    return server.client.post("/mcp", json=body, headers={"accept": "application/json, text/event-stream"})


def failure(answer: httpx.Response) -> str:
    """The sentence of a result that is an error."""
    is_stream = answer.headers["content-type"].startswith("text/event-stream")  # of the SDK
    result = json.loads(answer.text.rpartition("data: ")[2] if is_stream else answer.text)["result"]
    assert (answer.status_code, result["isError"]) == (200, True), answer.text
    return str(result["content"][0]["text"])


@pytest.mark.parametrize("config", [{}, THROUGH_SDK], ids=["direct", "sdk"])
def test_a_vector_store_that_is_down_is_told_in_a_sentence(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, config: dict[str, Any]
) -> None:
    async def search(*_: object) -> None:
        raise StoreDown("Milvus at http://milvus:19530 does not answer (timeout)")

    server = serve(**config)
    monkeypatch.setattr(server.gateway.service, "search", search)
    with caplog.at_level(logging.INFO):
        answer = call(server, "search_tools", query="weather")
        until(lambda: "POST /mcp " in caplog.text)
    assert failure(answer) == "the vector store does not answer; try again later"
    assert failure(answer) == server.post("/v1/search", utterance="weather").json()["error"]["message"]
    assert "Milvus at http://milvus:19530 does not answer" in caplog.text
    assert "POST /mcp 200" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("secret"), ConnectionError("secret")], ids=repr)
def test_a_bug_is_a_json_rpc_error_also_in_a_stream(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    seconds = 0.0

    async def search(*_: object) -> None:
        await asyncio.sleep(seconds)
        raise error

    server = serve()
    monkeypatch.setattr(server.gateway.service, "search", search)
    at_once = call(server, "search_tools", query="weather")
    wanted = {"code": -32603, "message": "the server failed; its log has the details"}
    assert (at_once.status_code, at_once.json()) == (200, {"jsonrpc": "2.0", "id": 7, "error": wanted})
    assert "secret" in caplog.text
    seconds = 0.5
    monkeypatch.setattr(direct_calls, "PING_SECONDS", 0.1)
    late = call(server, "search_tools", query="weather")
    assert (late.headers["content-type"], ": ping" in late.text) == ("text/event-stream", True)
    assert json.loads(late.text.rpartition("data: ")[2])["error"] == wanted


def test_the_result_of_a_call_is_never_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_WAITING", 0)  # as if others filled the queue
    with over_http(make_server()) as url:
        source = {"name": "hostile", "url": url}
        server = serve(mcp=[source], anonymous=["search", "call"], imports=LOCAL)
        until(lambda: "hostile/big" in server.gateway.catalogue.current.index.tools)
        answer = call(server, "call_tool", id="hostile/big", arguments={"bytes": 100_000})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["result"]["content"][0]["text"]) >= 100_000


@pytest.mark.parametrize("config", [{}, THROUGH_SDK], ids=["direct", "sdk"])
def test_a_large_search_that_finds_no_turn_is_told_in_a_sentence(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    monkeypatch.setattr(mcp_server, "SMALL", 5)
    server = serve(**config)
    builder, turn = server.gateway.service.answers, itertools.count()
    run = builder.run

    async def run_first(work: Callable[[], Any]) -> Any:
        if next(turn):  # the result is built, but not written
            raise overloaded("too many searches are waiting")
        return await run(work)

    monkeypatch.setattr(builder, "run", run_first)
    assert "too many searches" in failure(call(server, "search_tools", query="weather order city", k=50))
    assert next(turn) == 2
