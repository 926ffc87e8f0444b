"""Readers of tool catalogues in several formats.

    beir        a data set folder, or its corpus.jsonl: {_id, title, text, metadata}
    openapi     an OpenAPI 3.x or Swagger 2.0 document, JSON or YAML, and the files beside it that its $refs name
    mcp         the answer of an MCP server to tools/list
    functions   OpenAI or Anthropic function definitions, JSON or JSONL
    toolbench   ToolBench's tool JSON, one file or a folder category/tool.json
    csv         a table with a header: name, and any of id, description, category, provider, parameters

Every reader ensures that ids are unique and texts are tidy UTF-8; a defect of the file is a `BadInput` that names the
location and the way out. `collection.py` reads several catalogues as one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from retrievers.catalogue.detect import detect_format, lists_servers
from retrievers.catalogue.source import CatalogueSource
from retrievers.errors import BadInput
from retrievers.types import Tool

__all__ = ["FORMATS", "read_catalogue"]

FORMATS = {
    "beir": "retrievers.catalogue.beir:read",
    "openapi": "retrievers.catalogue.openapi:read",
    "mcp": "retrievers.catalogue.mcp:read",
    "functions": "retrievers.catalogue.functions:read",
    "toolbench": "retrievers.catalogue.toolbench:read",
    "csv": "retrievers.catalogue.csv_table:read",
}
"""A reader takes a `CatalogueSource` and yields (location, tool); adding a format is one file and one line here."""

_NAMING = ("openapi", "mcp")  # their ids start with the provider already
Reader = Callable[[CatalogueSource], Iterator[tuple[str, Tool]]]


def read_catalogue(path: Path, format: str | None = None, provider: str = "") -> list[Tool]:
    """The tools of a file or folder, in its order. Without `format` the content decides (detect.py).

    `provider` replaces the provider that the file names, and starts the ids.
    """
    return read_source(CatalogueSource.at(path, provider), format)


def read_source(source: CatalogueSource, format: str | None = None) -> list[Tool]:
    """The tools of a source, which may say where wrong entries are reported."""
    try:
        name = format if format is not None else detect_format(source)
        if name not in FORMATS:
            raise BadInput(_unknown_format(source, format))
        entries = _reader(name)(source)
        return _collect(source, entries if name in _NAMING else _with_provider(entries, source.provider))
    except RecursionError:
        # Only nesting makes a reader recurse; the limit depends on the caller's stack.
        raise BadInput(f"{source.path} nests its values too deeply to be a catalogue; flatten it") from None


def _with_provider(entries: Iterable[tuple[str, Tool]], provider: str) -> Iterator[tuple[str, Tool]]:
    for location, tool in entries:
        yield location, replace(tool, id=f"{provider}/{tool.id}", provider=provider) if provider else tool


def _reader(name: str) -> Reader:
    module, function = FORMATS[name].split(":")
    reader: Reader = getattr(import_module(module), function)
    return reader


def _unknown_format(source: CatalogueSource, format: str | None) -> str:
    known = ", ".join(FORMATS)
    if format is None and source.path == Path():  # what a blank path becomes
        return f"the path of the catalogue is blank, or the current folder; give a file or folder ({known})"
    if format is None and source.is_folder:
        return (
            f"{source.path} is a folder, and neither a data set (corpus.jsonl) nor one of ToolBench; `read_catalogues` "
            "reads the files in it"
        )
    if format is None and lists_servers(source):
        return (
            f"{source.path} lists MCP servers, not their tools; ask each for them with "
            "`rewrite-index mcp tools.json --command '…'` (or --url), and give that file"
        )
    if format is None:
        return (
            f"{source.path} is in no known format; name it with format, one of {known} "
            "(docs/indexing.md shows what each looks like)"
        )
    near = difflib.get_close_matches(str(format), FORMATS, n=1)
    return f"unknown catalogue format {format!r}{f', did you mean {near[0]!r}?' if near else ''}; known are {known}"


def _collect(source: CatalogueSource, entries: Iterable[tuple[str, Tool]]) -> list[Tool]:
    """The tools; refuses an empty catalogue, skips duplicate ids."""
    tools: list[Tool] = []
    locations: dict[str, str] = {}
    for location, tool in entries:
        if tool.id in locations:
            error = f"{location}: the id {tool.id!r} is already taken at {locations[tool.id]}; give one another id"
            source.skip(BadInput(error))
            continue
        locations[tool.id] = location
        tools.append(tool)
    if not tools:
        raise BadInput(f"{source.path} holds no tools; give a catalogue with at least one")
    return tools
