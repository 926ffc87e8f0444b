"""Calls reach MCP servers over both transports, at most once, whatever the servers do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from doubles import BM25_ONLY, plain_context, varied_tools
from hostile_mcp import TOOLS, make_server
from mcp import Client, StdioServerParameters
from mcp_servers import over_http
from paths import ROOT, SUPPORT
from serving import Running, running
from waiting import until

from pipelines.serve.bounds.places import FairPlaces
from pipelines.serve.calls import upstream
from pipelines.serve.mcp import direct_calls
from retrievers.index import build

Serve = Callable[..., Running]
SECRET = "hush-hush-0815"
MODES = ("auto", "legacy")
LOCAL = {"hosts": ["127.0.0.1"], "allow_private": True, "seconds": 30.0, "bytes": 1_000_000}
OPEN = {"anonymous": ["search", "call"], "imports": LOCAL}


def talk(server: Any, work: Callable[[Client], Any], mode: str = "auto", **more: Any) -> Any:
    async def run() -> Any:
        async with Client(server, mode=mode, **more) as client:
            return await work(client)

    return asyncio.run(run())


def text(result: Any) -> str:
    return str(result.content[0].text)


def hostile(journal: Path | str = "", **more: Any) -> dict[str, Any]:
    command = [sys.executable, str(SUPPORT / "hostile_mcp.py"), str(journal)]
    return {"name": "hostile", "command": command, **more}


def lines(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []


def ready(server: Running, name: str = "hostile") -> Running:
    until(lambda: server.gateway.calls.upstreams[name].state == "up")
    until(lambda: f"{name}/echo" in server.gateway.catalogue.current.index.tools)
    return server


def call(tool: str, **arguments: Any) -> Callable[[Client], Any]:
    return lambda client: client.call_tool("call_tool", {"id": f"hostile/{tool}", "arguments": arguments})


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """A gateway in front of the hostile server: starting a process is most of a test's time."""
    folder = tmp_path_factory.mktemp("calls")
    build(folder / "index", varied_tools(60), BM25_ONLY, plain_context())
    source = hostile(folder / "journal.jsonl", variables=["SERVER_KEY"])
    config = {"index": str(folder / "index"), "retriever": "bm25", "mcp": [source], **OPEN}
    config["calls"] = {"log": str(folder / "log")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVER_KEY", SECRET)
        with running(config) as server:
            yield ready(server), folder / "journal.jsonl"


@pytest.fixture
def gateway(started: tuple[Running, Path]) -> Running:
    return ready(started[0])


@pytest.fixture
def journal(started: tuple[Running, Path]) -> Path:
    """Every call that the hostile server began in this test."""
    started[1].unlink(missing_ok=True)
    return started[1]


@pytest.fixture
def log(started: tuple[Running, Path]) -> Path:
    """The log of calls."""
    [path] = (started[1].parent / "log").iterdir()
    return path


@pytest.mark.parametrize("mode", MODES)
def test_a_call_returns_what_the_server_returned(gateway: Running, mode: str) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async def work(client: Client) -> None:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"search_tools", "get_tool", "call_tool"}
        found = (await client.call_tool("search_tools", {"query": "hostile echo"})).structured_content
        assert "hostile/echo" in [tool["id"] for tool in found["tools"]]
        result = await call("echo", text="grüße")(client)
        assert (text(result), result.structured_content["echo"], result.is_error) == ("grüße", "grüße", False)
        steps = {"id": "hostile/steps", "search": found["search"]}
        assert text(await client.call_tool("call_tool", steps, progress_callback=on_progress)) == "done"
        lied = await call("lie")(client)  # its structured content contradicts its output schema
        assert (text(lied), lied.structured_content) == ("no sum", {"sum": "not a number"})
        failed = await call("fail")(client)
        assert failed.is_error

    talk(f"{gateway.url}/mcp", work, mode)
    assert seen == [(1.0, 3.0, "step 1"), (2.0, 3.0, "step 2"), (3.0, 3.0, "step 3")]


def test_over_http_as_well(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "START_SECONDS", 0.5)
    with over_http(make_server()) as url:
        server = ready(serve(mcp=[{"name": "hostile", "url": url}], **OPEN))
        result = talk(f"{server.url}/mcp", call("echo", text="hello"))
        assert (text(result), result.structured_content["echo"]) == ("hello", "hello")
        large = talk(f"{server.url}/mcp", call("big", bytes=3_000_000))
        assert (large.is_error, "more than 1000000 bytes" in text(large)) == (True, True), text(large)
        assert text(talk(f"{server.url}/mcp", call("echo", text="still here"))) == "still here"
    gone = talk(f"{server.url}/mcp", call("echo", text="hello"))
    assert (gone.is_error, "the call was not sent" in text(gone)) == (True, True), text(gone)
    assert server.gateway.calls.upstreams["hostile"].state == "down"


def test_mistakes_are_sentences_that_a_model_can_mend(gateway: Running, journal: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"id": "hostile/nothing"}, "take one from search_tools"),
        ({"id": "hostile/echo"}, "missing: text"),
        ({"id": "hostile/echo", "arguments": {"text": 7}}, "argument 'text' must be a string, not a number"),
        ({"id": "hostile/big", "arguments": {"bytes": -1}}, "argument 'bytes' must satisfy minimum 0"),
        ({"id": "hostile/echo", "arguments": []}, "arguments:"),
        ({"id": "tool-1"}, "can only be found here"),
        ({"id": "hostile/wipe", "arguments": {"text": "all"}}, "access.destructive"),
    ]
    known = next(iter(gateway.gateway.catalogue.current.index.tools))

    async def work(client: Client) -> list[Any]:
        return [await client.call_tool("call_tool", {**body, "id": body["id"].replace("tool-1", known)})
                for body, _ in cases]  # fmt: skip

    for result, (_, sentence) in zip(talk(f"{gateway.url}/mcp", work), cases, strict=True):
        assert (result.is_error, sentence in text(result)) == (True, True), text(result)
    assert lines(journal) == []


def test_a_server_that_dies_is_started_again_and_the_call_is_not_repeated(gateway: Running, journal: Path) -> None:
    starts = gateway.gateway.calls.upstreams["hostile"].starts

    async def work(client: Client) -> tuple[Any, Any]:
        return await call("die")(client), await call("echo", text="again")(client)

    died, answered = talk(f"{gateway.url}/mcp", work)
    assert (died.is_error, "may have been carried out" in text(died)) == (True, True), text(died)
    assert text(answered) == "again"
    assert [line["call"] for line in lines(journal)] == ["die", "echo"]
    assert gateway.gateway.calls.upstreams["hostile"].starts == starts + 1


def test_a_killed_server_is_noticed_at_once(gateway: Running) -> None:
    async def work(client: Client) -> list[int]:
        pids = []
        for _ in range(2):
            pids.append((await call("echo", text="who")(client)).structured_content["pid"])
            os.kill(pids[-1], signal.SIGKILL)
            until(lambda: gateway.gateway.calls.upstreams["hostile"].state != "up" or None)
        return pids

    first, second = talk(f"{gateway.url}/mcp", work)
    assert first != second


def test_a_server_that_hangs_has_a_time_limit_and_is_informed(
    gateway: Running, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, hostile_server = gateway, gateway.gateway.calls.upstreams["hostile"]
    limited = replace(hostile_server.source, seconds=1.0)
    monkeypatch.setattr(hostile_server, "source", limited)
    monkeypatch.setattr(hostile_server, "_places", FairPlaces(2))

    async def work(client: Client) -> list[Any]:
        first = [asyncio.create_task(call("hang")(client)) for _ in range(2)]
        while server.gateway.calls.upstreams["hostile"].running < 2:
            await asyncio.sleep(0.01)
        refused = await call("echo", text="x")(client)
        return [refused, *await asyncio.gather(*first)]

    busy, *late = talk(f"{server.url}/mcp", work)
    assert "running 2 calls" in text(busy)
    assert all("did not answer within 1 s" in text(one) for one in late), text(late[0])
    until(lambda: lines(journal).count({"cancelled": "hang"}) == 2)
    assert text(talk(f"{server.url}/mcp", call("echo", text="well"))) == "well"


@pytest.mark.parametrize("mode", MODES)
def test_a_caller_who_leaves_cancels_the_call(gateway: Running, journal: Path, mode: str) -> None:
    async def work(client: Client) -> None:
        task = asyncio.create_task(call("hang")(client))
        while not lines(journal):
            await asyncio.sleep(0.01)
        task.cancel()

    talk(f"{gateway.url}/mcp", work, mode)
    until(lambda: {"cancelled": "hang"} in lines(journal))
    until(lambda: gateway.gateway.calls.upstreams["hostile"].running == 0)
    assert lines(journal).count({"cancelled": "hang"}) == 1


def test_a_caller_of_the_plain_route_who_leaves_cancels_too(gateway: Running, journal: Path) -> None:
    body = {"tool": "hostile/hang", "arguments": {}}

    async def work() -> None:
        async with httpx2.AsyncClient(base_url=gateway.url, timeout=60) as client:
            task = asyncio.create_task(client.post("/v1/call", json=body))
            while not lines(journal):
                await asyncio.sleep(0.01)
            task.cancel()

    asyncio.run(work())
    until(lambda: {"cancelled": "hang"} in lines(journal))
    until(lambda: gateway.gateway.calls.upstreams["hostile"].running == 0)
    assert gateway.gateway.calls.audit.recent[-1]["outcome"] == "cancelled"


def test_a_call_that_takes_long_is_answered_as_a_stream(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_calls, "PING_SECONDS", 0.1)
    hanging = gateway.gateway.calls.upstreams["hostile"]
    monkeypatch.setattr(hanging, "source", replace(hanging.source, seconds=0.5))
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "call_tool", "arguments": {"id": "hostile/hang"}}}  # fmt: skip
    headers = {"Accept": "application/json, text/event-stream"}
    answer = httpx2.post(f"{gateway.url}/mcp", json=body, headers=headers, timeout=60)
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.text.count(": ping") >= 2
    result = json.loads(answer.text.rpartition("data: ")[2])["result"]
    assert (result["isError"], "did not answer within 0.5 s" in result["content"][0]["text"]) == (True, True)


def test_an_answer_that_is_too_large_fails_alone_and_a_flood_harms_nobody(gateway: Running) -> None:
    starts = gateway.gateway.calls.upstreams["hostile"].starts

    async def work(client: Client) -> None:
        large, small = await asyncio.gather(call("big", bytes=100_000_000)(client), call("echo", text="a")(client))
        assert (large.is_error, text(small)) == (True, "a")
        assert "more than 1000000 bytes" in text(large)
        flood = asyncio.create_task(call("flood", bytes=4_000)(client))
        began = time.monotonic()
        for _ in range(20):
            await client.call_tool("search_tools", {"query": "weather"})
        assert time.monotonic() - began < 20
        assert text(await flood) == "done"

    talk(f"{gateway.url}/mcp", work)
    assert gateway.gateway.calls.upstreams["hostile"].starts == starts


def test_secrets_of_the_environment_reach_the_server_and_nothing_else(gateway: Running, log: Path) -> None:
    seen: list[str | None] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message)

    async def work(client: Client) -> None:
        assert text(await call("secret")(client)) == "the key is [redacted]"
        body = {"id": "hostile/secret"}
        await client.call_tool("call_tool", body, progress_callback=on_progress)
        definition = (await client.call_tool("get_tool", body)).structured_content
        assert definition["description"].endswith("Its key is [redacted].")

    talk(f"{gateway.url}/mcp", work)
    assert seen == ["with [redacted]"]
    assert SECRET not in log.read_text()


@pytest.mark.parametrize("route", ["/mcp", "/v1/call"])
def test_arguments_that_no_server_could_read_are_refused(gateway: Running, journal: Path, route: str) -> None:
    """Python reads more than JSON allows, and writes less depth than it reads."""

    def post(tool: str, arguments: str) -> tuple[int, str]:
        named = json.dumps({"id" if route == "/mcp" else "tool": tool})[:-1].replace("surrogate", "\\ud800")
        body = f'{named}, "arguments": {arguments}}}'
        if route == "/mcp":
            params = f'{{"name": "call_tool", "arguments": {body}}}'
            body = f'{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {params}}}'
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        answer = httpx2.post(f"{gateway.url}{route}", content=body.encode("ascii"), headers=headers, timeout=60)
        return answer.status_code, answer.text

    for value in (
        "NaN",
        "1e999",
        '"\\ud800"',
        "[" * 900 + "]" * 900,
        "[" * 950 + "]" * 950,
        "[" * 99_000 + "]" * 99_000,
    ):
        status, answer = post("hostile/hang", f'{{"x": {value}}}')
        assert status in (200, 400, 422), (value[:20], status, answer)
        assert "failed inside" not in answer
    status, answer = post("surrogate", "{}")
    assert status in (200, 400, 422), answer
    assert lines(journal) == []
    assert gateway.client.get("/v1/upstreams").status_code == 200
    assert post("hostile/echo", '{"text": "well"}')[0] == 200


def test_on_standard_input_too(index: Path, tmp_path: Path, journal: Path) -> None:
    config = tmp_path / "serve.yaml"
    source = hostile(journal)
    config.write_text(json.dumps({"index": str(index), "retriever": "bm25", "anonymous": ["search"], "mcp": [source],
                                  "access": {"destructive": ["hostile/wipe"]}}))  # fmt: skip
    started = "import sys; from pipelines.cli.main import serve; sys.exit(serve(sys.argv[1:]))"
    command = StdioServerParameters(command=sys.executable, args=["-c", started, "mcp", str(config)], cwd=ROOT)

    async def work(client: Client) -> None:
        async with asyncio.timeout(30):
            while (result := await call("wipe", text="clean")(client)).is_error:
                assert "no tool with this id" in text(result)  # until the server's list was read
        assert text(result) == "clean"
        hanging = asyncio.create_task(call("hang")(client))
        while {"call": "hang", "arguments": {}} not in lines(journal):
            await asyncio.sleep(0.01)
        hanging.cancel()
        while {"cancelled": "hang"} not in lines(journal):
            await asyncio.sleep(0.01)

    talk(command, work)
    assert set(TOOLS) >= {line["call"] for line in lines(journal) if "call" in line}
