"""Tools ready to paste: as OpenAI functions, Anthropic tools or MCP tools, and what that saves in tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from pipelines.serve.catalogue.live_index import Snapshot
from pipelines.serve.formats.argument_schemas import arguments_of, renamed
from pipelines.serve.formats.legal_names import LegalNames
from pipelines.serve.schemas import definitions as definition_wire
from retrievers.lint.invisible import visible
from retrievers.types import Tool

CHARACTERS_A_TOKEN = 4.0
"""Of definitions as compact JSON. SmolLM2's tokenizer has 3.8 on the sample and on an MCP catalogue, 4.0 on ToolBench,
4.3 on BFCL and 4.5 on MCP-Zero (some 120 tools of each)."""
MOST_COUNTED = 500
"""Tools that the whole catalogue's size is told from; of more, so many are drawn evenly."""
Made = tuple[dict[str, Any], dict[str, str]]
"""A definition, and the argument names in it that were not legal."""


@dataclass(frozen=True, slots=True)
class _Format:
    make: Callable[[Tool, str], Made]
    extra: str = ""
    longest: int = 64


def mcp_tool(tool: Tool, name: str) -> dict[str, Any]:
    """As an MCP server lists it; argument names need no change there."""
    return {"name": name, "description": visible(tool.description), "inputSchema": arguments_of(tool)}


def _openai(tool: Tool, name: str) -> Made:
    schema, back = renamed(arguments_of(tool))
    function = {"name": name, "description": visible(tool.description)[:1024], "parameters": schema}
    return {"type": "function", "function": function}, back


def _responses(tool: Tool, name: str) -> Made:
    made, back = _openai(tool, name)
    return {"type": "function", **made["function"], "strict": False}, back


def _anthropic(tool: Tool, name: str) -> Made:
    schema, back = renamed(arguments_of(tool))
    return {"name": name, "description": visible(tool.description), "input_schema": schema}, back


def _deferred(tool: Tool, name: str) -> Made:
    made, back = _anthropic(tool, name)
    return {**made, "defer_loading": True}, back


FORMATS: dict[str, _Format] = {
    "openai": _Format(_openai),
    "openai-responses": _Format(_responses),
    "anthropic": _Format(_anthropic, longest=128),
    "anthropic-search": _Format(_deferred, longest=128),
    "mcp": _Format(lambda tool, name: (mcp_tool(tool, name), {}), extra=".", longest=128),
}


class Definitions:
    """One catalogue's tools in one format."""

    def __init__(self, snapshot: Snapshot, format: str) -> None:
        self._tools, self._format = snapshot.index.tools, FORMATS[format]
        self._references = format == "anthropic-search"
        self._names = LegalNames(snapshot.index.tools.names(), self._format.extra, self._format.longest)
        ids = list(self._tools)
        some = ids[:: max(1, -(-len(ids) // MOST_COUNTED))]
        self._whole = len(ids) / len(some) * sum(_characters(self._made(tool)[1]) for tool in some)

    def of(self, found: Sequence[str]) -> definition_wire.Definitions:
        """These tools, in order."""
        made = [self._made(tool) for tool in found]
        sent = tokens(sum(_characters(definition) for _, definition, _ in made))
        whole = tokens(self._whole)
        names = {name: tool for tool, (name, _, _) in zip(found, made, strict=True)}
        references: list[JsonValue] = [{"type": "tool_reference", "tool_name": name} for name in names]
        return definition_wire.Definitions(
            tools=[definition for _, definition, _ in made],
            names=names,
            arguments={name: back for name, _, back in made if back},
            references=references if self._references else None,
            tokens=definition_wire.Tokens(sent=sent, catalogue=whole, saved=max(0, whole - sent)),
        )

    def _made(self, tool_id: str) -> tuple[str, dict[str, Any], dict[str, str]]:
        tool = self._tools[tool_id]
        name = self._names.of(tool.id, tool.name)
        return (name, *self._format.make(tool, name))


class Pasting:
    """Definitions of the newest catalogue, by format; another catalogue is looked at when it is first asked for."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Snapshot, Definitions]] = {}

    async def of(
        self, snapshot: Snapshot, format: str | None, found: Sequence[str]
    ) -> definition_wire.Definitions | None:
        """These tools in a format; None where none is wanted."""
        if format is None:
            return None
        held = self._known.get(format)
        if held is None or held[0] is not snapshot:
            held = snapshot, await asyncio.to_thread(Definitions, snapshot, format)
            self._known[format] = held
        return await asyncio.to_thread(held[1].of, found)


def tokens(characters: float) -> int:
    """An estimate: what exactly it is depends on the model."""
    return round(characters / CHARACTERS_A_TOKEN)


def _characters(definition: dict[str, Any]) -> int:
    return len(json.dumps(definition, ensure_ascii=False, separators=(",", ":")))
