"""`rewrite-index mcp`: the tools of a running MCP server as a catalogue file, for those who have a server and no file.

Whoever types the command may ask whom they like, so the host is allowed, private addresses and plain http with it; the
other rules of an import hold (no redirects, bounded in bytes and time). A command gets the environment of the shell it
was typed in, where its keys are; what it says on standard error is shown.
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

from pipelines.cli.index_commands import say
from pipelines.serve.settings import McpSource
from retrievers.errors import BadInput
from rewrite.errors import BackendDown


def fetch(arguments: argparse.Namespace) -> int:
    source = _source(arguments)
    out: Path = arguments.output
    if not out.parent.is_dir():
        raise BadInput(f"there is no folder {out.parent} to write {out.name} into; make it first")
    answer = asyncio.run(_asked(source, arguments.seconds))
    if not answer["tools"]:
        raise BackendDown(f"{_called(source)} lists no tools; {out} was not written")
    part = out.with_name(out.name + ".part")
    part.write_text(json.dumps(answer, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    os.replace(part, out)
    say(f"{out}: {len(answer['tools'])} tools of {answer['serverInfo']['name'] or 'a server without a name'}")
    return 0


def _source(arguments: argparse.Namespace) -> McpSource:
    try:
        url, command = arguments.url or "", tuple(shlex.split(arguments.command or ""))
    except ValueError as error:
        raise BadInput(f"--command is no command line ({error}); write it as in a shell") from error
    if bool(url) == bool(command):
        raise BadInput("say how the server is reached: --url URL, or --command 'what starts it'")
    if arguments.seconds <= 0:
        raise BadInput("--seconds must be positive")
    if command and shutil.which(command[0]) is None:
        raise BadInput(f"there is no command {command[0]!r} on the PATH; give the one that starts the server")
    if arguments.key_variable and not os.environ.get(arguments.key_variable, "").strip():
        raise BadInput(f"${arguments.key_variable} is empty; put the server's key into it, or leave --key-variable out")
    return McpSource(arguments.name or "", url, command, key_variable=arguments.key_variable or "")


def _called(source: McpSource) -> str:
    return source.url or source.command[0]


async def _asked(source: McpSource, seconds: float) -> dict[str, Any]:
    """The server's list as it would answer to tools/list, all pages in one, with its name."""
    import httpx

    from pipelines.serve.catalogue.mcp_client import connect, list_tools, to_refusal
    from pipelines.serve.errors import Refusal
    from pipelines.serve.settings import ImportRules

    try:
        hosts = (httpx.URL(source.url).host,) if source.url else ()
        rules = ImportRules(hosts=hosts, allow_private=True, seconds=seconds)
        async with connect(source, rules, dict(os.environ)) as client:
            name = source.name or (client.server_info.name if client.server_info else "")
            return {"serverInfo": {"name": name}, "tools": await list_tools(client, seconds)}
    except httpx.InvalidURL as error:
        raise BadInput(f"--url: {error}; give the server's address, such as https://host/mcp") from error
    except (Refusal, ExceptionGroup) as error:  # the SDK's tasks end together
        refusal = to_refusal(error)
        if refusal.code == "invalid":
            raise BadInput(f"--url: {refusal}") from error
        raise BackendDown(f"{_called(source)}: {refusal}; is it running, and is this how it is reached?") from error
