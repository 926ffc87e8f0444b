"""Lists for clients that do not search: chosen providers, and the tools of the newest search."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from doubles import BM25_ONLY, plain_context, varied_tools
from mcp import Client, StdioServerParameters
from mcp_servers import ToolShop, over_http
from paths import ROOT, SUPPORT
from serving import Running, running
from waiting import until

from pipelines.serve.mcp.listed_tools import _name
from retrievers.index import build
from retrievers.types import Tool

OWN = {"search_tools", "get_tool", "call_tool"}
HOSTILE = {"name": "hostile", "command": [sys.executable, str(SUPPORT / "hostile_mcp.py")]}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("lists")
    build(folder / "index", varied_tools(60), BM25_ONLY, plain_context())
    return {"index": str(folder / "index"), "retriever": "bm25", "anonymous": ["search", "call"], "mcp": [HOSTILE]}


@pytest.fixture(scope="module")
def shop() -> ToolShop:
    return ToolShop("mend", "wash")


@pytest.fixture(scope="module")
def gateway(config: dict[str, Any], shop: ToolShop) -> Iterator[Running]:
    calls = {"list_providers": ["shop"], "list_found": 3}
    imports = {"hosts": ["127.0.0.1"], "allow_private": True}
    with over_http(shop) as url:
        source = {"name": "shop", "url": url}
        with running({**config, "mcp": [HOSTILE, source], "calls": calls, "imports": imports}) as server:
            until(lambda: {"hostile/echo", "shop/wash"} <= set(server.gateway.catalogue.current.index.tools))
            yield server


def talk(server: Any, work: Callable[[Client], Any], **more: Any) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(60), Client(server, **more) as client:
            return await work(client)

    return asyncio.run(run())


async def names(client: Client) -> set[str]:
    listed = (await client.list_tools(cache_mode="refresh")).tools
    return {tool.name for tool in listed} - OWN


def test_chosen_providers_are_listed_and_found_tools_join_them(gateway: Running) -> None:
    async def work(client: Client) -> None:
        first = await names(client)
        assert {name.rpartition("_")[0] for name in first} == {"mend", "wash"}
        async with client.listen(tools_list_changed=True) as events:
            await client.call_tool("search_tools", {"query": "hostile echo of a test", "k": 5})
            await anext(aiter(events))
        added = await names(client) - first
        [echo] = [name for name in added if name.startswith("echo_")]
        assert not any(name.startswith("wipe_") for name in added)  # destructive, and not granted
        result = await client.call_tool(echo, {"text": "hello"})
        assert result.content[0].text == "hello"  # type: ignore[union-attr]
        wrong = await client.call_tool(echo, {"text": 1})
        assert (wrong.is_error, "must be a string" in wrong.content[0].text) == (True, True)  # type: ignore[union-attr]

    talk(f"{gateway.url}/mcp", work)


def test_callers_are_notified_when_a_listed_provider_changes_its_tools(gateway: Running, shop: ToolShop) -> None:
    async def work(client: Client) -> None:
        async with client.listen(tools_list_changed=True) as events:
            shop.tools["iron"] = "Irons for you."
            await shop.tell()
            await anext(aiter(events))
        assert "iron" in {name.rpartition("_")[0] for name in await names(client)}

    talk(f"{gateway.url}/mcp", work)
    del shop.tools["iron"]


def test_a_tool_cannot_take_the_listed_name_of_another() -> None:
    tools = [Tool(f"{provider}/read file", "read file", provider=provider) for provider in ("files", "evil")]
    first, second = map(_name, tools)
    assert (first[:10], second[:10]) == ("read_file_", "read_file_")
    assert first != second
    assert len(first.removeprefix("read_file_")) == 16  # more than a provider can try by choosing its ids
    assert len(_name(Tool("x", "x" * 500))) <= 64


def test_on_standard_input_the_client_is_notified(config: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(json.dumps({**config, "calls": {"list_found": 3}}))
    started = "import sys; from pipelines.cli.main import serve; sys.exit(serve(sys.argv[1:]))"
    command = StdioServerParameters(command=sys.executable, args=["-c", started, "mcp", str(path)], cwd=ROOT)
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    async def work(client: Client) -> set[str]:
        while not changed.is_set():  # until the server's list was read
            await client.call_tool("search_tools", {"query": "hostile echo of a test", "k": 5})
            await asyncio.sleep(0.05)
            if not await names(client):
                changed.clear()
        return await names(client)

    assert any(name.startswith("echo_") for name in talk(command, work, mode="legacy", message_handler=on_message))
