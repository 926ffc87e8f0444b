"""Finds the tool that a call in a log refers to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pipelines.legal_names import LegalNames
from retrievers.types import ToolId

SPELLINGS = (("", 64), ("", 128), (".", 128))
"""Spelling of names for OpenAI, Anthropic and MCP clients: extra characters, maximum length."""


class ToolNames:
    """Tools of a catalogue by all names that a client may call them."""

    def __init__(self, tools: Iterable[tuple[ToolId, str]]) -> None:
        pairs = list(tools)
        self._ids = {tool for tool, _ in pairs}
        self._spelled: dict[str, ToolId] = {}
        self._named: defaultdict[str, list[ToolId]] = defaultdict(list)
        for extra, max_length in SPELLINGS:
            legal = LegalNames(pairs, extra, max_length)
            self._spelled |= {legal.of(tool, name): tool for tool, name in pairs}
        for tool, name in pairs:
            self._named[name].append(tool)

    def find(self, name: str) -> list[ToolId]:
        """Tools of that name: none if it is unknown, several if it is ambiguous."""
        # A client with several MCP servers calls `mcp__server__tool` what the server calls `tool`.
        for called in dict.fromkeys((name, name.rpartition("__")[2])):
            if called in self._ids:
                return [called]
            if called in self._spelled:
                return [self._spelled[called]]
            if called in self._named:
                return self._named[called]
        return []
