"""`rewrite-index mcp`: the tools of a running MCP server as a catalogue file.

The user names the server, so any host is allowed, also private addresses and plain http; the other rules of an import
hold (no redirects, limits on bytes and time). A command gets the shell's environment with its keys; its standard error
is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

from pipelines.serve.settings import McpSource
from retrievers.errors import BadInput
from rewrite.errors import BackendDown


def run_mcp(arguments: argparse.Namespace) -> int:
    source = _source(arguments)
    out: Path = arguments.output
    if not out.parent.is_dir():
        raise BadInput(f"the folder {out.parent} for {out.name} does not exist; make it first")
    answer = asyncio.run(_fetch(source, arguments.timeout))
    if not answer["tools"]:
        raise BackendDown(f"{_address(source)} lists no tools; {out} was not written")
    part = out.with_name(out.name + ".part")
    part.write_text(json.dumps(answer, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    os.replace(part, out)
    print(f"{out}: {len(answer['tools'])} tools of {answer['serverInfo']['name'] or 'a server without a name'}")
    return 0


def _source(arguments: argparse.Namespace) -> McpSource:
    try:
        url, command = arguments.url or "", tuple(shlex.split(arguments.command or ""))
    except ValueError as error:
        raise BadInput(f"--command cannot be parsed ({error}); write it as in a shell") from error
    if bool(url) == bool(command):
        raise BadInput("give either --url URL or --command 'COMMAND that starts the server'")
    if arguments.timeout <= 0:
        raise BadInput(f"--timeout must be more than 0, got {arguments.timeout:g}")
    if command and shutil.which(command[0]) is None:
        raise BadInput(f"--command: {command[0]!r} is not on the PATH")
    if arguments.key_variable and not os.environ.get(arguments.key_variable, "").strip():
        raise BadInput(f"${arguments.key_variable} is empty; put the server's key into it, or leave --key-variable out")
    return McpSource(arguments.name or "", url, command, key_variable=arguments.key_variable or "")


def _address(source: McpSource) -> str:
    return source.url or source.command[0]


async def _fetch(source: McpSource, seconds: float) -> dict[str, Any]:
    """The server's answers to tools/list, all pages in one, with its name."""
    import httpx

    from pipelines.serve.catalogue.mcp_client import connect, list_tools, to_refusal
    from pipelines.serve.errors import Refusal
    from pipelines.serve.settings import ImportRules

    try:
        hosts = (httpx.URL(source.url).host,) if source.url else ()
        rules = ImportRules(hosts=hosts, allow_private=True, seconds=seconds)
        async with connect(source, rules, dict(os.environ)) as (client, _):
            name = source.name or (client.server_info.name if client.server_info else "")
            return {"serverInfo": {"name": name}, "tools": await list_tools(client, seconds)}
    except httpx.InvalidURL as error:
        raise BadInput(f"--url: {error}; give the server's address, such as https://host/mcp") from error
    except (Refusal, ExceptionGroup) as error:  # the SDK's tasks end together
        refusal = to_refusal(error)
        if refusal.code == "invalid":
            raise BadInput(f"--url: {refusal}") from error
        raise BackendDown(f"{_address(source)}: {refusal}; is it running at this address?") from error
