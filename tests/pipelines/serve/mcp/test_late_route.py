"""The MCP server is loaded beside the first requests: early ones wait, and a failure reaches them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.serve.mcp import late_route
from pipelines.serve.mcp.late_route import LateMcpRoute

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


def test_a_server_that_cannot_be_loaded_fails_its_requests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: str) -> SimpleNamespace:
        raise ImportError("broken")

    async def work() -> None:
        route = LateMcpRoute(UNUSED)
        async with route.open():
            with pytest.raises(ImportError, match="broken"):
                await route(ASKED, UNUSED, UNUSED)

    monkeypatch.setattr(late_route, "import_module", load)
    asyncio.run(work())
