"""From agents' calls to a better index: found and called through a gateway, learned, compared, promoted, served."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
import yaml
from mcp import Client
from mcp.server.lowlevel import Server
from mcp_servers import over_http
from serving import Running, running
from waiting import until

from pipelines.cli import main as cli
from pipelines.data.dataset import DataSet, load_dataset
from pipelines.data.dataset_writer import write_dataset
from pipelines.serve.keys import make_key
from retrievers.index import build
from retrievers.kind import Context
from retrievers.settings import BM25Settings
from retrievers.types import Tool

TOOLS, FIXED, LEARNED = 24, 80, 120
DENSE = {
    "kind": "dense",
    "train": {"data": [{"path": "collected"}], "epochs": 1, "batch_size": 32, "max_length": 48, "blends": [0, 0.5]},
}


def make_server(tools: list[Tool]) -> Server[Any]:
    """An MCP server with tools of the sample, all of which succeed."""

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        schema = {"type": "object"}
        listed = [types.Tool(name=tool.name, description=tool.description, input_schema=schema) for tool in tools]
        return types.ListToolsResult(tools=listed)

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(type="text", text=f"{params.name} is done")])

    return Server("sample", on_list_tools=list_tools, on_call_tool=call_tool)


def work(server: Running, key: str, data: DataSet, requests: dict[str, set[str]]) -> None:
    """An agent that searches for each request, and calls the right tools that it is shown."""

    async def run() -> None:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
            transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
            async with Client(transport) as client:
                for query, needed in requests.items():
                    body = {"query": data.queries[query].text, "k": 10}
                    found = (await client.call_tool("search_tools", body)).structured_content
                    for tool in [tool["id"] for tool in found["tools"] if tool["id"] in needed]:
                        result = await client.call_tool("call_tool", {"id": tool, "search": found["search"]})
                        assert not result.is_error

    asyncio.run(run())


def test_calls_become_a_better_index_that_the_server_takes_up(
    tmp_path: Path, context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    data = load_dataset("bundled:sample")
    asked = Counter(tool for gold in data.gold["test"].values() for tool in gold)
    names = {tool: f"shop/{tool.replace('/', '_')}" for tool, _ in asked.most_common(TOOLS)}
    tools = [
        Tool(names[tool.id], names[tool.id].removeprefix("shop/"), tool.description, provider="shop")
        for tool in data.tools
        if tool.id in names
    ]
    gold = {
        split: {
            query: {names[tool] for tool in needed} for query, needed in sorted(found.items()) if needed <= set(names)
        }
        for split, found in data.gold.items()
    }
    fixed = dict(list(gold["test"].items())[:FIXED])
    write_dataset(tmp_path / "fixed", tools, [data.queries[query] for query in fixed], {"test": fixed})
    # The server's tools come in over MCP; an index is never empty.
    build(
        tmp_path / "live",
        [replace(tools[0], id="kettle", name="kettle", provider="")],
        {"main": BM25Settings()},
        context,
    )
    keys = {name: make_key() for name in ("one", "two")}
    config = {
        "output": f"{tmp_path}/renewals",
        "live": {"index": f"{tmp_path}/live", "retriever": "main"},
        "sources": {"calls": f"{tmp_path}/calls", "min_callers": 2, "min_utterances": 30},
        "retrain": {"kind": "index", "retrievers": {"main": DENSE}},
        "fixed_sets": [{"data": f"{tmp_path}/fixed"}],
        "metrics": ["recall@5", "ndcg@5"],
    }
    (tmp_path / "renew.yaml").write_text(yaml.safe_dump(config))
    with over_http(make_server(tools)) as url:
        serving = {
            "index": f"{tmp_path}/live", "retriever": "main", "watch_seconds": 0.1, "anonymous": ["search"],
            "mcp": [{"name": "shop", "url": url}], "imports": {"hosts": ["127.0.0.1"], "allow_private": True},
            "trust": {"vetted": ["shop"]}, "calls": {"log": f"{tmp_path}/calls", "log_queries": True},
            "keys": [{"name": name, "sha256": key[1], "scopes": ["search", "call"]} for name, key in keys.items()],
        }  # fmt: skip
        with running(serving) as server:
            until(lambda: set(names.values()) <= set(server.gateway.catalogue.current.index.tools))
            requests = dict(list(gold["train"].items())[:LEARNED])
            for key, _ in keys.values():
                work(server, key, data, requests)
            before = str(server.search("will I need a coat")["fingerprints"]["index"])
            assert cli.train(["renew", str(tmp_path / "renew.yaml"), "--device", "cpu"]) == 0
            output = capsys.readouterr().out
            assert "The candidate is better, and nowhere worse" in output, output
            assert "promoted:" in output
            until(lambda: str(server.search("will I need a coat")["fingerprints"]["index"]) != before)
