"""Phrasings: a tool in one line, as a rewrite names it and as a rewriter sees it.

name         search flights
description  Finds flights between two airports on a day.
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


def main_description(tool: Tool) -> str:
    """A tool's description without the sections that some catalogues append."""
    text = tool.description.strip()
    flattened = _FLATTENED.search(text) if re.match(r"\w+:", text) else None
    text = flattened[1] if flattened else _SECTION.split(text)[0]
    return " ".join(text.split())


def _own_name(tool: Tool) -> str:
    """The tool's own name in words, without its provider's in front."""
    name = tool.name.removeprefix(f"{tool.provider}: ") if tool.provider else tool.name
    return name.strip() if " " in name.strip() else " ".join(words(name)) or name


def _named(tool: Tool) -> str:
    return _joined(tool.name if " " in tool.name else _own_name(tool), main_description(tool))


def _path(tool: Tool) -> str:
    return " | ".join(
        part for part in (tool.category, tool.provider, _joined(_own_name(tool), main_description(tool))) if part
    )


def _parameters(tool: Tool) -> str:
    names = ", ".join(parameter.name for parameter in tool.parameters)
    return _named(tool) + (f" ({names})" if names else "")


def _joined(name: str, text: str) -> str:
    return f"{name}: {text}" if text and text.casefold() != name.casefold() else name


PHRASINGS: dict[str, Callable[[Tool], str]] = {
    "path": _path,
    "named": _named,
    "description": lambda tool: main_description(tool) or _own_name(tool),
    "parameters": _parameters,
    "name": _own_name,
}
"""Phrasings by name; of equally good ones the first is taken. `indexed` needs the index's fields."""
NAMES = (*PHRASINGS, "indexed")


def phrase(tool: Tool, phrasing: str, max_characters: int, fields: Collection[str] = FIELDS) -> str:
    """A tool in one line of bounded length."""
    text = document(tool, fields) if phrasing == "indexed" else PHRASINGS[phrasing](tool)
    return " ".join(text.split())[:max_characters].strip()
