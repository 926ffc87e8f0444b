"""A tool in one line: what a rewrite says of it, and how it is shown to a rewriter.

name         search flights
said         Finds flights between two airports on a day.
named        Search flights: Finds flights between two airports on a day.
path         Travel | SkyFerry | Search flights: Finds flights between two airports on a day.
parameters   Search flights: Finds flights … (origin, destination, date)
indexed      the text that is indexed
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from retrievers.text import FIELDS, document, words
from retrievers.types import Tool

# Catalogues flattened from records: `tool_name:…, api_description:Get suggestions, required_params: …`
_FLATTENED = re.compile(r"(?:^|, )\w*description:\s*(.*?)(?=, \w+:|$)", re.DOTALL)
_SECTION = re.compile(r"\n(?:[A-Z][a-z]+: )")


def said(tool: Tool) -> str:
    """What a tool's description says it does, without the sections that some catalogues append."""
    text = tool.description.strip()
    flattened = _FLATTENED.search(text) if re.match(r"\w+:", text) else None
    text = flattened[1] if flattened else _SECTION.split(text)[0]
    return " ".join(text.split())


def _own(tool: Tool) -> str:
    """The tool's own name in words, without its provider's in front."""
    name = tool.name.removeprefix(f"{tool.provider}: ") if tool.provider else tool.name
    return name.strip() if " " in name.strip() else " ".join(words(name)) or name


def _named(tool: Tool) -> str:
    return _joined(tool.name if " " in tool.name else _own(tool), said(tool))


def _path(tool: Tool) -> str:
    return " | ".join(part for part in (tool.category, tool.provider, _joined(_own(tool), said(tool))) if part)


def _parameters(tool: Tool) -> str:
    names = ", ".join(parameter.name for parameter in tool.parameters)
    return _named(tool) + (f" ({names})" if names else "")


def _joined(name: str, text: str) -> str:
    return f"{name}: {text}" if text and text.casefold() != name.casefold() else name


PHRASINGS: dict[str, Callable[[Tool], str]] = {
    "path": _path,
    "named": _named,
    "said": lambda tool: said(tool) or _own(tool),
    "parameters": _parameters,
    "name": _own,
}
"""The ways of saying a tool, by name; of equally good ones the first is taken. `indexed` needs the index's fields."""
NAMES = (*PHRASINGS, "indexed")


def phrase(tool: Tool, phrasing: str, max_characters: int, fields: Collection[str] = FIELDS) -> str:
    """A tool in one line of bounded length."""
    text = document(tool, fields) if phrasing == "indexed" else PHRASINGS[phrasing](tool)
    return " ".join(text.split())[:max_characters].strip()
