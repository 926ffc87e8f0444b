"""The one way into the catalogue for tools from outside: routes, imports and followed MCP servers alike."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.serve.catalogue import LiveCatalogue
from retrievers.index import Change
from retrievers.types import Tool


class Admission:
    """Lets tools in."""

    def __init__(self, catalogue: LiveCatalogue) -> None:
        self._catalogue = catalogue

    async def put(self, tools: Sequence[Tool]) -> Change:
        """Adds or replaces tools."""
        return await self._catalogue.put(tools)

    async def remove(self, ids: Sequence[str]) -> None:
        """Takes tools out, one change each."""
        for tool in ids:
            await self._catalogue.delete(tool)

    def tools_of(self, provider: str) -> list[str]:
        """Ids of the tools that came from an MCP server of that name."""
        tools = self._catalogue.current.index.tools
        return [tool for tool in tools if tool.startswith(f"{provider}/") and tools[tool].provider == provider]
