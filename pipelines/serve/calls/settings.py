"""Settings of calls: which tools a key may find and call, and what is logged."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from typing import Annotated

from annotated_types import Ge, Gt

from retrievers.errors import BadInput

ALL = ("*",)


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Tools by provider, by id, or by a pattern of ids such as `files/read_*`."""

    search: tuple[str, ...] = ALL
    """Tools that may be found; others do not exist for the caller."""
    call: tuple[str, ...] = ALL
    """Tools that may be called, of those that may be found; needs the scope `call`."""
    destructive: tuple[str, ...] = ()
    """Tools that may be called although they change or delete what exists."""

    @property
    def finds_all(self) -> bool:
        """True if no tool is hidden from the caller."""
        return "*" in self.search

    def may_find(self, tool_id: str, provider: str) -> bool:
        return self.finds_all or _matches(self.search, tool_id, provider)

    def may_call(self, tool_id: str, provider: str) -> bool:
        return _matches(self.call, tool_id, provider)

    def may_destroy(self, tool_id: str, provider: str) -> bool:
        return _matches(self.destructive, tool_id, provider)


ANY_TOOL = AccessRules()


@dataclass(frozen=True, slots=True)
class CallSettings:
    """Lists of tools for MCP clients, and the log of searches and calls."""

    list_providers: tuple[str, ...] = ()
    """Providers whose tools the MCP list shows by themselves, for clients that do not search."""
    list_found: Annotated[int, Ge(0)] = 0
    """Tools of a caller's newest search that its MCP list shows as well; 0: none."""
    log: str = ""
    """The folder for the log of calls, and of the searches before them; empty: none is kept."""
    log_arguments: bool = False
    """Also write the arguments of calls to it."""
    log_queries: bool = False
    """Also write the queries of searches to it, so that `rewrite-train renew` can learn from calls."""


@dataclass(frozen=True, slots=True)
class ApiSource:
    """An HTTP API whose tools, from its OpenAPI document, can be called."""

    provider: str
    """The provider of its tools: the document's title, unless the catalogue names another."""
    url: str
    """The address that the tools' paths are appended to; no other host is called."""
    key_variable: str = ""
    """The environment variable with its credentials; the document says how they are sent. `USER:PASSWORD` for basic."""
    seconds: Annotated[float, Gt(0)] = 30.0
    """Time limit of a call."""
    concurrent: Annotated[int, Ge(1)] = 64
    """Calls at the same time; further ones are refused."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"https?://[^/@?#\s]+(/[^?#\s]*)?", self.url):
            raise BadInput(
                f"give an address like https://api.example.com/v1, without a password, got {self.url!r}", "url"
            )


@lru_cache(maxsize=1024)
def _pattern(rules: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{translate(rule)})" for rule in rules) or r"(?!)")


def _matches(rules: tuple[str, ...], tool_id: str, provider: str) -> bool:
    return provider in rules or _pattern(rules).match(tool_id) is not None
