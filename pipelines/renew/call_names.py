"""Which tool a call in a log was a call of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pipelines.legal_names import LegalNames
from retrievers.types import ToolId

SPELLINGS = (("", 64), ("", 128), (".", 128))
"""How the server spells names for OpenAI, Anthropic and MCP clients: extra characters, longest name."""


class ToolNames:
    """The tools of a catalogue by everything that a client may call them."""

    def __init__(self, tools: Iterable[tuple[ToolId, str]]) -> None:
        """`tools`: ids and names."""
        pairs = list(tools)
        self._ids = {tool for tool, _ in pairs}
        self._spelled: dict[str, ToolId] = {}
        self._named: defaultdict[str, list[ToolId]] = defaultdict(list)
        for extra, longest in SPELLINGS:
            legal = LegalNames(pairs, extra, longest)
            self._spelled |= {legal.of(tool, name): tool for tool, name in pairs}
        for tool, name in pairs:
            self._named[name].append(tool)

    def find(self, name: str) -> list[ToolId]:
        """The tool of that name; none: nobody is called so; several: it cannot be told which."""
        # A client with several MCP servers calls `mcp__server__tool` what the server calls `tool`.
        for called in dict.fromkeys((name, name.rpartition("__")[2])):
            if called in self._ids:
                return [called]
            if called in self._spelled:
                return [self._spelled[called]]
            if called in self._named:
                return self._named[called]
        return []
