"""MCP servers in a config."""

from __future__ import annotations

from dataclasses import dataclass

from retrievers.errors import BadInput


@dataclass(frozen=True, slots=True)
class McpSource:
    """A running MCP server whose tools are kept in the catalogue."""

    name: str
    """The provider of its tools; every tool of that provider is the server's."""
    url: str = ""
    """Its streamable HTTP address. `imports` says which hosts may be asked."""
    command: tuple[str, ...] = ()
    """Or the command that speaks MCP on its standard input."""
    every_seconds: float = 60.0
    """How often its list is asked for, beside whenever it says that it has changed."""
    key_variable: str = ""
    """The environment variable that holds its API key."""

    def __post_init__(self) -> None:
        if bool(self.url) == bool(self.command):
            raise BadInput("an MCP server is reached by a url or by a command: give one of them")
        if self.every_seconds <= 0:
            raise BadInput("must be positive", "every_seconds")
