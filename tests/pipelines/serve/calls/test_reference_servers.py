"""Reference servers from the package index, found and called through the gateway by the official SDK."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from serving import Running
from waiting import until

Serve = Callable[..., Running]


def command(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed: pip install {name}")
    return path


def test_time_and_git_servers_answer_through_the_gateway(serve: Serve, tmp_path: Path) -> None:
    sources = [
        {"name": "time", "command": [command("mcp-server-time"), "--local-timezone=UTC"]},
        {"name": "git", "command": [command("mcp-server-git"), "--repository", str(tmp_path)]},
    ]
    for words in (
        ["init", "-q"],
        ["-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "--allow-empty", "-qm", "First"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    server = serve(mcp=sources, anonymous=["search", "call"])
    calls = server.gateway.calls
    until(lambda: all(upstream.state == "up" for upstream in calls.upstreams.values()))
    until(lambda: {"time/convert_time", "git/git_log"} <= set(server.gateway.catalogue.current.index.tools))

    async def work(client: Client) -> None:
        async def find_and_call(query: str, tool: str, **arguments: Any) -> str:
            found = (await client.call_tool("search_tools", {"query": query})).structured_content
            assert tool in [one["id"] for one in found["tools"]], query
            result = await client.call_tool(
                "call_tool", {"id": tool, "arguments": arguments, "search": found["search"]}
            )
            return str(result.content[0].text)  # type: ignore[union-attr]

        noon = {"source_timezone": "Europe/Oslo", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        assert "Asia/Tokyo" in await find_and_call("convert a time between timezones", "time/convert_time", **noon)
        assert "First" in await find_and_call("git log of commits", "git/git_log", repo_path=str(tmp_path))
        wrong = await find_and_call("convert a time between timezones", "time/convert_time", time="12:00")
        assert wrong.startswith("missing: source_timezone, target_timezone")
        refused = await find_and_call("git reset staged changes", "git/git_reset", repo_path=str(tmp_path))
        assert "access.destructive" in refused

    async def run() -> None:
        async with asyncio.timeout(60), Client(f"{server.url}/mcp") as client:
            await work(client)

    asyncio.run(run())
    assert [record["rank"] for record in calls.audit.recent if record["outcome"] == "ok"]
