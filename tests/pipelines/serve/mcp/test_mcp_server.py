"""The gateway as an MCP server, called by the official SDK over HTTP and standard input."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from paths import ROOT
from serving import Running

from pipelines.serve.keys import make_key

Serve = Callable[..., Running]
MODES = ("auto", "legacy")
"""The protocol of 2026, and the handshake of those before it."""


def talk(server: Any, work: Callable[[Client], Any], mode: str = "auto") -> Any:
    async def run() -> Any:
        async with Client(server, mode=mode) as client:
            return await work(client)

    return asyncio.run(run())


def with_key(url: str, key: str) -> Any:
    return streamable_http_client(url, http_client=httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}))


@pytest.mark.parametrize("mode", MODES)
def test_an_mcp_client_finds_a_tool_and_reads_its_definition(serve: Serve, mode: str) -> None:
    server = serve()
    schema = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    coat = {"name": "coatFinder", "description": "Finds a coat.", "schema": schema}
    server.client.put("/v1/tools/coat", json={**coat, "call": {"method": "GET", "path": "/coats"}})

    async def work(client: Client) -> None:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) == {"search_tools", "get_tool"}
        assert listed["search_tools"].input_schema["required"] == ["query"]
        found = await client.call_tool("search_tools", {"query": "a coat for the weather order", "k": 3})
        assert not found.is_error
        assert json.loads(found.content[0].text) == found.structured_content
        first = found.structured_content["tools"][0]
        assert (first["id"], len(found.structured_content["tools"])) == ("coat", 3)
        raw = server.search("a coat for the weather order", k=3)["results"][0]["tools"]
        assert [tool["id"] for tool in found.structured_content["tools"]] == [tool["id"] for tool in raw]
        got = await client.call_tool("get_tool", {"id": first["id"]})
        assert got.structured_content["inputSchema"] == schema
        assert got.structured_content["call"] == {"method": "GET", "path": "/coats"}
        assert "never an instruction" in (client.instructions or "")

    talk(f"{server.url}/mcp", work, mode)


def test_mistakes_are_told_to_the_model_in_a_sentence(serve: Serve) -> None:
    async def work(client: Client) -> list[str]:
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("search_tools", {}),
            ("search_tools", {"query": "x", "k": 0}),
            ("search_tools", {"query": "x", "evil": 1}),
            ("search_tools", {"query": "x" * 9000}),
            ("get_tool", {"id": "nobody's"}),
            ("run_shell", {}),
        ]
        answers = [await client.call_tool(name, arguments) for name, arguments in wrong]
        assert all(answer.is_error for answer in answers)
        return [answer.content[0].text for answer in answers]

    told = talk(f"{serve().url}/mcp", work)
    assert told[0].startswith("query:")
    assert "evil" not in told[2]
    assert "take one from search_tools" in told[4]
    assert "search_tools, get_tool" in told[5]


def test_keys_scopes_and_shares_hold(serve: Serve) -> None:
    (mine, mine_hash), (writer, writer_hash) = make_key(), make_key()
    keys = [
        {"name": "mine", "sha256": mine_hash, "scopes": ["search"], "per_minute": 3},
        {"name": "writer", "sha256": writer_hash, "scopes": ["write"]},
    ]
    server = serve(keys=keys, anonymous=[])
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert server.client.post("/mcp", json=body).status_code == 401

    async def search(client: Client) -> Any:
        return await client.call_tool("search_tools", {"query": "weather"})

    async def four(client: Client) -> list[Any]:
        return [await search(client) for _ in range(4)]

    refused = talk(with_key(f"{server.url}/mcp", writer), search)
    assert (refused.is_error, "no scope 'search'" in refused.content[0].text) == (True, True)
    answers = talk(with_key(f"{server.url}/mcp", mine), four)
    assert [answer.is_error for answer in answers] == [False, False, False, True]
    assert "per minute" in answers[3].content[0].text


def test_no_stream_no_foreign_page_no_query_in_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve()
    assert server.client.get("/mcp").status_code == 405
    assert server.client.delete("/mcp").status_code == 405
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert server.client.post("/mcp", json=body, headers={"Origin": "https://evil.example"}).status_code == 403
    assert server.client.post("/mcp", content=b"{", headers={"Content-Type": "application/json"}).status_code == 400

    async def work(client: Client) -> Any:
        return await client.call_tool("search_tools", {"query": "my secret trip to Reykjavik weather"})

    with caplog.at_level(logging.INFO):
        talk(f"{server.url}/mcp", work)
    assert "POST /mcp 200" in caplog.text
    assert "Reykjavik" not in caplog.text
    assert 'route="/mcp"' in server.client.get("/metrics").text


def test_by_standard_input_and_output(index: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(f"index: {index}\nretriever: bm25\nanonymous: [search]\n")
    started = "import sys; from pipelines.cli.main import serve; sys.exit(serve(sys.argv[1:]))"
    command = StdioServerParameters(command=sys.executable, args=["-c", started, "mcp", str(config)], cwd=ROOT)

    async def work(client: Client) -> Any:
        found = await client.call_tool("search_tools", {"query": "weather", "k": 2})
        return found.structured_content["tools"]

    assert len(talk(command, work)) == 2
