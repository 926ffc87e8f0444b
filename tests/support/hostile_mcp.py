"""An MCP server as a command whose tools misbehave on demand, and remember what was called.

With a first argument, every call that begins is written to that file: what the tests count.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NUMBER = {"type": "object", "properties": {"bytes": {"type": "integer", "minimum": 0}}, "required": ["bytes"]}
HINTS: dict[str, types.ToolAnnotations] = {
    "wipe": types.ToolAnnotations(destructive_hint=True),
    "echo": types.ToolAnnotations(read_only_hint=True),
}
TOOLS: dict[str, dict[str, Any]] = {
    "echo": TEXT,
    "wipe": TEXT,
    "die": {"type": "object"},
    "hang": {"type": "object"},
    "steps": {"type": "object"},
    "big": NUMBER,
    "flood": NUMBER,
    "fail": {"type": "object"},
    "lie": {"type": "object", "properties": {"x": {"type": "strng", "$ref": "http://127.0.0.1:9/schema"}}},
    "secret": {"type": "object"},
}
KEY = f" Its key is {os.environ.get('SERVER_KEY')}."
OUTPUT = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


def make_server(journal: str = "") -> Server[Any]:  # noqa: C901
    def write(line: dict[str, Any]) -> None:
        if journal:
            with open(journal, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=f"The tool {name} of a test.{KEY if name == 'secret' else ''}",
                    input_schema=schema,
                    annotations=HINTS.get(name),
                    output_schema=OUTPUT if name == "lie" else None,
                )
                for name, schema in TOOLS.items()
            ]
        )

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:  # noqa: C901
        arguments = params.arguments or {}
        write({"call": params.name, "arguments": arguments})
        text, structured, wrong = "", None, False
        match params.name:
            case "echo" | "wipe":
                text, structured = arguments["text"], {"echo": arguments["text"], "pid": os.getpid()}
            case "die":
                os._exit(7)
            case "hang":
                try:
                    await asyncio.sleep(600)
                except BaseException:
                    write({"cancelled": "hang"})
                    raise
            case "steps":
                for step in (1, 2, 3):
                    await context.session.report_progress(step, 3, f"step {step}")
                text = "done"
            case "big":
                text = "x" * int(arguments["bytes"])
            case "flood":
                for number in range(int(arguments["bytes"])):
                    await context.session.send_log_message("info", f"line {number}")
                text = "done"
            case "fail":
                raise ValueError("the tool has a bug")
            case "lie":
                text, structured = "no sum", {"sum": "not a number"}
            case "secret":
                await context.session.report_progress(1, 1, f"with {os.environ.get('SERVER_KEY')}")
                text = f"the key is {os.environ.get('SERVER_KEY')}"
        content = [types.TextContent(type="text", text=text)]
        return types.CallToolResult(content=content, structured_content=structured, is_error=wrong)

    return Server("hostile", on_list_tools=list_tools, on_call_tool=call_tool)


def main() -> None:
    from mcp.server.stdio import stdio_server

    async def serve() -> None:
        server = make_server(*sys.argv[1:2])
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    asyncio.run(serve())


if __name__ == "__main__":
    main()
