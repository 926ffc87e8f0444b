"""Tool definitions for model APIs (OpenAI, Anthropic, MCP), and the tokens that a short list saves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import JsonValue

from pipelines.legal_names import LegalNames
from pipelines.serve.formats.argument_schemas import Schema, arguments_of, rename_properties, unchecked_arguments
from pipelines.serve.schemas.search import DefinitionsOut, TokenCounts
from retrievers.text import visible
from retrievers.types import Tool

CHARACTERS_PER_TOKEN = 4.0
"""Of definitions as compact JSON. SmolLM2's tokenizer has 3.8 on the sample and on an MCP catalogue, 4.0 on ToolBench,
4.3 on BFCL and 4.5 on MCP-Zero (some 120 tools of each)."""
MAX_KEPT = 4_096
"""Definitions that are kept for the next answers."""
MAX_COUNTED = 500
"""Tools that the size of the whole catalogue is estimated from; of larger ones, an even sample."""
Definition = tuple[dict[str, Any], dict[str, str]]
"""A definition, and its renamed arguments: legal name -> the tool's own."""


def mcp_tool(tool: Tool, name: str) -> dict[str, Any]:
    """The tool as an MCP server lists it; MCP allows any argument name."""
    return _mcp(tool, name, arguments_of(tool))[0]


def _mcp(tool: Tool, name: str, schema: Schema) -> Definition:
    return {"name": name, "description": visible(tool.description), "inputSchema": schema}, {}


def _openai(tool: Tool, name: str, schema: Schema) -> Definition:
    schema, originals = rename_properties(schema)
    function = {"name": name, "description": visible(tool.description)[:1024], "parameters": schema}
    return {"type": "function", "function": function}, originals


def _responses(tool: Tool, name: str, schema: Schema) -> Definition:
    definition, originals = _openai(tool, name, schema)
    return {"type": "function", **definition["function"], "strict": False}, originals


def _anthropic(tool: Tool, name: str, schema: Schema) -> Definition:
    schema, originals = rename_properties(schema)
    return {"name": name, "description": visible(tool.description), "input_schema": schema}, originals


def _anthropic_search(tool: Tool, name: str, schema: Schema) -> Definition:
    definition, originals = _anthropic(tool, name, schema)
    return {**definition, "defer_loading": True}, originals


@dataclass(frozen=True, slots=True)
class _Format:
    define: Callable[[Tool, str, Schema], Definition]
    extra_characters: str = ""
    max_length: int = 64


FORMATS: dict[str, _Format] = {
    "openai": _Format(_openai),
    "openai-responses": _Format(_responses),
    "anthropic": _Format(_anthropic, max_length=128),
    "anthropic-search": _Format(_anthropic_search, max_length=128),
    "mcp": _Format(_mcp, extra_characters=".", max_length=128),
}


def definition_bytes(tool: Tool, format: str) -> int:
    """The size of a tool's definition, estimated without checking its schema."""
    definition, _ = FORMATS[format].define(tool, tool.name, unchecked_arguments(tool))
    return len(json.dumps(definition, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class _Definer:
    """Defines tools of a catalogue by their ids."""

    tools: Mapping[str, Tool]
    format: _Format
    names: LegalNames

    def define_and_count(self, tool_id: str) -> tuple[str, dict[str, Any], dict[str, str], int]:
        """The definition, with its number of characters."""
        name, definition, originals = self.define(tool_id)
        return name, definition, originals, _characters(definition)

    def define(
        self, tool_id: str, arguments: Callable[[Tool], Schema] = arguments_of
    ) -> tuple[str, dict[str, Any], dict[str, str]]:
        """Name, definition and renamed arguments."""
        tool = self.tools[tool_id]
        name = self.names.of(tool.id, tool.name)
        return (name, *self.format.define(tool, name, arguments(tool)))


class DefinitionBuilder:
    """Definitions of one catalogue's tools in one format."""

    def __init__(self, tools: Mapping[str, Tool], names: Iterable[tuple[str, str]], format: str) -> None:
        """`names`: ids and names of all tools."""
        form = FORMATS[format]
        definer = _Definer(tools, form, LegalNames(names, form.extra_characters, form.max_length))
        self._with_references = format == "anthropic-search"
        ids = list(tools)
        sampled = ids[:: max(1, -(-len(ids) // MAX_COUNTED))]
        # Unchecked: a check takes milliseconds, which the first caller would wait for; the size hardly differs.
        counted = (_characters(definer.define(tool, unchecked_arguments)[1]) for tool in sampled)
        self._characters = len(ids) / len(sampled) * sum(counted)
        # Of another object: a method of its own would be a cycle, and keep the tools until garbage is collected.
        self._define_once = lru_cache(MAX_KEPT)(definer.define_and_count)

    def build(self, ids: Sequence[str]) -> DefinitionsOut:
        """Definitions of these tools, in order."""
        definitions = [self._define_once(tool) for tool in ids]
        sent = count_tokens(sum(characters for _, _, _, characters in definitions))
        whole = count_tokens(self._characters)
        names = {name: tool for tool, (name, _, _, _) in zip(ids, definitions, strict=True)}
        references: list[JsonValue] = [{"type": "tool_reference", "tool_name": name} for name in names]
        return DefinitionsOut.model_construct(  # not checked: they are ours, and many
            tools=[definition for _, definition, _, _ in definitions],
            names=names,
            arguments={name: originals for name, _, originals, _ in definitions if originals},
            references=references if self._with_references else None,
            tokens=TokenCounts(sent=sent, catalogue=whole, saved=max(0, whole - sent)),
        )


def count_tokens(characters: float) -> int:
    """An estimate; the exact number depends on the model."""
    return round(characters / CHARACTERS_PER_TOKEN)


def _characters(definition: dict[str, Any]) -> int:
    return len(json.dumps(definition, ensure_ascii=False, separators=(",", ":")))
