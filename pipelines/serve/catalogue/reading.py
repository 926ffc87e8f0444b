"""Read a catalogue that was sent as text, and compare its tools with the live ones.

    python -m pipelines.serve.catalogue.reading

As a process of its own it reads one catalogue after another: a line of JSON with the text, answered by the ids of its
tools; then a line with those of them that are live, as they are stored, answered by a line with a size, and that
many bytes. It ends with its standard input, and so with the server.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pipelines.serve.catalogue.fetch import read_tools
from pipelines.serve.errors import Refusal
from pipelines.serve.formats.tool_bodies import tool_out
from pipelines.serve.schemas import tools as schemas
from retrievers.index.tools import decode
from retrievers.types import Tool

NICE = 5
"""Below the server, which answers others on the same processors."""


@dataclass(frozen=True, slots=True)
class CatalogueText:
    """A catalogue as text, with the provider of tools without one."""

    document: str
    format: str | None
    provider: str
    max_bytes: int
    """Of the answer."""


@dataclass(frozen=True, slots=True)
class ReadTools:
    """Tools of a catalogue, and a sentence about each entry that was skipped."""

    tools: Sequence[Tool]
    skipped: Sequence[str]


def read_text(text: CatalogueText) -> ReadTools:
    """Read the tools."""
    tools, skipped = read_tools(text.document.encode("utf-8", "replace"), text.format)
    if provider := text.provider.strip():
        tools = [
            tool if tool.provider else replace(tool, id=f"{provider}/{tool.id}", provider=provider) for tool in tools
        ]
    return ReadTools(tools, skipped)


def write_answer(read: ReadTools, known: Mapping[str, Tool], max_bytes: int) -> bytes:
    """The answer as JSON. `known`: live tools; one that is too large is refused."""
    frame = schemas.ReadResponse(tools=[], skipped=list(read.skipped)).model_dump_json(by_alias=True)
    first, last = frame.split("[]", 1)
    compared = (  # one by one: as one text they would keep Python's lock for 0.1 s
        schemas.ReadTool.model_construct(
            **dict(tool_out(tool)), state=_compare(tool, known.get(tool.id))
        ).model_dump_json(by_alias=True)
        for tool in read.tools
    )
    data = f"{first}[{','.join(compared)}]{last}".encode()
    if len(data) > max_bytes:
        message = (
            f"the answer would have {len(data):,} bytes, and {max_bytes:,} are allowed; send the catalogue in parts"
        )
        raise Refusal(422, "answer_too_large", message)
    return data


def _compare(tool: Tool, known: Tool | None) -> str:
    """new, changed or same; the spacing of JSON does not count."""
    if known is None:
        return "new"
    plain, stored = (replace(one, schema="", call="") for one in (tool, known))
    same = plain == stored and _parse(tool.schema) == _parse(known.schema) and _parse(tool.call) == _parse(known.call)
    return "same" if same else "changed"


def _parse(text: str) -> object:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def main() -> None:
    """Read catalogues until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the server too, which ends this
    with suppress(OSError):
        os.nice(NICE)
    for line in sys.stdin.buffer:
        text = CatalogueText(**json.loads(line))
        try:
            read = read_text(text)
            _send({"ids": [tool.id for tool in read.tools]})
            known = {tool.id: tool for tool in map(decode, json.loads(sys.stdin.buffer.readline()))}
            data = write_answer(read, known, text.max_bytes)
            _send({"size": len(data)}, data)
        except Refusal as refusal:
            _send({"refusal": [refusal.status, refusal.code, refusal.message]})


def _send(head: dict[str, Any], data: bytes = b"") -> None:
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
