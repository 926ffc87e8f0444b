"""MCP servers built with the official SDK: over HTTP in a thread, or as a command."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

PAGE = 2


class ToolShop:
    """Lists whatever tools it has been given, two a page."""

    def __init__(self, *names: str) -> None:
        self.tools = {name: f"Does {name} for you." for name in names}
        self.schemas: dict[str, dict[str, Any]] = {}
        self.bus = InMemorySubscriptionBus()
        self.asked = 0
        self._listed: list[tuple[str, str]] = []
        self.server: Server[Any] = Server(
            "shop", on_list_tools=self._list, on_subscriptions_listen=ListenHandler(self.bus)
        )

    async def _list(self, _: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        self.asked += 1
        start = int(params.cursor) if params and params.cursor else 0
        if not start:  # what changes meanwhile changes nothing on the pages of one list
            self._listed = sorted(self.tools.items())
        usual = {"type": "object", "properties": {"what": {"type": "string"}}}
        every = [
            types.Tool(name=name, description=said, input_schema=self.schemas.get(name, usual))
            for name, said in self._listed
        ]
        more = str(start + PAGE) if start + PAGE < len(every) else None
        return types.ListToolsResult(tools=every[start : start + PAGE], next_cursor=more)

    async def tell(self) -> None:
        """Says that the list has changed."""
        await self.bus.publish(ToolsListChanged())


@contextmanager
def over_http(shop: ToolShop | Server[Any]) -> Iterator[str]:
    """The URL of the shop, or of another server."""
    app = shop.server if isinstance(shop, ToolShop) else shop
    config = uvicorn.Config(app.streamable_http_app(), port=0, log_level="critical", ws="none")
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        thread.join()


def main() -> None:
    """The shop as a command."""
    import asyncio

    from mcp.server.stdio import stdio_server

    async def serve() -> None:
        server = ToolShop(*sys.argv[1:]).server
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    asyncio.run(serve())


if __name__ == "__main__":
    main()
