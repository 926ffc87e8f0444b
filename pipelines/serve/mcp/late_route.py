"""Loads the MCP server beside the first requests: the import of its library would take a third of a start."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from starlette.routing import Route

from pipelines.serve.errors import Refusal
from pipelines.serve.gateway import Gateway
from pipelines.serve.http.asgi import Message, Receive, Send

if TYPE_CHECKING:
    from pipelines.serve.mcp.route import McpRoute

PATH = "/mcp"
CANNOT_LOAD = "the MCP server cannot be loaded; see the log"
log = logging.getLogger("rewrite-serve")
if find_spec("mcp") is None:
    raise ModuleNotFoundError("No module named 'mcp'", name="mcp")


class LateMcpRoute:
    """The route of the MCP server. A request that comes before it is loaded waits.

    If it cannot be loaded, requests get 503 and the server is not ready.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.route = Route(PATH, endpoint=self, methods=["POST"], include_in_schema=False)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Load the server, and answer requests inside this context."""
        self._loaded: asyncio.Future[McpRoute | None] = asyncio.get_running_loop().create_future()
        closing = asyncio.Event()
        running = asyncio.create_task(self._run(closing))
        try:
            yield
        finally:
            closing.set()
            await running

    async def _run(self, closing: asyncio.Event) -> None:
        try:
            module = await asyncio.to_thread(import_module, "pipelines.serve.mcp.route")
            gc.freeze()  # what an import leaves stays: no collection needs to look through it
            async with (route := module.McpRoute(self._gateway)).open():
                self._loaded.set_result(route)
                await closing.wait()
        except Exception:
            if self._loaded.done():
                raise
            log.exception("the MCP server cannot be loaded")
            self._gateway.failure = CANNOT_LOAD
            self._loaded.set_result(None)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request."""
        scope["route"] = self.route
        route = await asyncio.shield(self._loaded)
        if route is None:
            raise Refusal(503, "unavailable", CANNOT_LOAD)
        await route(scope, receive, send)
