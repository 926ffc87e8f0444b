"""The MCP server is loaded beside the first requests: early ones wait, and a failure is seen."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from serving import Running
from waiting import until

from pipelines.serve.mcp import late_route
from pipelines.serve.mcp.late_route import LateMcpRoute

Serve = Callable[..., Running]
ASKED: Any = {"type": "http"}
UNUSED: Any = None


class CountingRoute:
    """Counts its requests while it is open."""

    def __init__(self, *_: object) -> None:
        self.is_open, self.requests = False, 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        self.is_open = True
        yield
        self.is_open = False

    async def __call__(self, *_: object) -> None:
        assert self.is_open
        self.requests += 1


def test_requests_wait_until_the_server_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    inner, may_load = CountingRoute(), threading.Event()

    def load(_: str) -> SimpleNamespace:
        may_load.wait(60)
        return SimpleNamespace(McpRoute=lambda *_: inner)

    async def work() -> None:
        route = LateMcpRoute(UNUSED)
        async with route.open():
            early = [asyncio.create_task(route(ASKED, UNUSED, UNUSED)) for _ in range(2)]
            await asyncio.sleep(0)
            early[0].cancel()  # one caller who leaves takes nothing from the others
            assert inner.requests == 0
            may_load.set()
            await early[1]
            await route(ASKED, UNUSED, UNUSED)
        assert (inner.requests, inner.is_open) == (2, False)

    monkeypatch.setattr(late_route, "import_module", load)
    asyncio.run(work())


def test_a_server_that_cannot_be_loaded_is_not_ready_and_says_so(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def load(_: str) -> SimpleNamespace:
        raise ImportError("broken")

    monkeypatch.setattr(late_route, "import_module", load)
    with caplog.at_level(logging.INFO):
        server = serve()
        until(lambda: server.client.get("/readyz").status_code == 503)
        ready = server.client.get("/readyz").json()
        assert (ready["ready"], "MCP server cannot be loaded" in ready["error"]) == (False, True)
        for _ in range(2):
            answer = server.post("/mcp", jsonrpc="2.0", id=1, method="tools/list")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
            assert "MCP server cannot be loaded" in answer.json()["error"]["message"]
        until(lambda: "POST /mcp 503" in caplog.text)
    assert caplog.text.count("ImportError: broken") == 1
    server.search("weather")
