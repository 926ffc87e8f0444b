"""An MCP server for the benchmarks of calls: it adds numbers, and writes every call that it begins to a file.

python benchmarks/counting_server.py [JOURNAL]          speaks on standard input and output
python benchmarks/counting_server.py --http [JOURNAL]   prints its URL and listens there
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server

NUMBERS = {
    "type": "object",
    "properties": {"number": {"type": "string"}, "values": {"type": "array", "items": {"type": "number"}}},
    "required": ["number", "values"],
}


def make_server(journal: str) -> Server[Any]:
    """The server; `journal`: empty for none."""
    handle = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if journal else None

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        tool = types.Tool(name="add", description="Add numbers and return their sum.", input_schema=NUMBERS)
        return types.ListToolsResult(tools=[tool])

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        if handle is not None:
            os.write(handle, f"{arguments['number']}\n".encode())
        total = {"number": arguments["number"], "sum": sum(arguments["values"])}
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=json.dumps(total))], structured_content=total
        )

    return Server("counting", on_list_tools=list_tools, on_call_tool=call_tool)


def main() -> None:
    """Serve on standard input and output, or over HTTP."""
    words = [word for word in sys.argv[1:] if word != "--http"]
    server = make_server(words[0] if words else "")
    if "--http" in sys.argv:
        _serve_http(server)
    else:
        asyncio.run(_serve_stdio(server))


def _serve_http(server: Server[Any]) -> None:
    import socket

    import uvicorn

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    app = server.streamable_http_app(json_response=True, stateless_http=True)
    uvicorn.Server(uvicorn.Config(app, log_level="critical", ws="none")).run(sockets=[listening])


async def _serve_stdio(server: Server[Any]) -> None:
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    main()
