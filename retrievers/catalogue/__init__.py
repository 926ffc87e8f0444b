"""Catalogues in: one `Tool`, whatever the source.

    beir        a data set folder, or its corpus.jsonl: {_id, title, text, metadata}
    openapi     an OpenAPI 3.x document, JSON or YAML
    mcp         the answer of an MCP server to tools/list
    functions   OpenAI or Anthropic function definitions, JSON or JSONL
    toolbench   ToolBench's tool JSON, one file or a folder category/tool.json
    csv         a table with a header: name, and any of id, description, category, provider, parameters

Every reader promises the same: ids are unique, texts carry no surrounding white space and can be written as UTF-8,
and whatever is wrong with the file is a `BadInput` that names the place and the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path

from retrievers.catalogue.detect import detected, names_servers
from retrievers.catalogue.source import Source
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
"""A reader takes a `Source` and yields (place, tool); adding a format is one file and one line here."""

Reader = Callable[[Source], Iterator[tuple[str, Tool]]]


def read_catalogue(path: Path, format: str | None = None) -> list[Tool]:
    """The tools of a file or folder, in its order. Without `format` the content decides, see `detect`."""
    source = Source.at(path)
    try:
        name = format if format is not None else detected(source)
        if name not in FORMATS:
            raise BadInput(_unknown(source, format))
        return _collected(source, _reader(name)(source))
    except RecursionError:
        # Only nesting makes a reader recurse, and how deep is too deep depends on the caller's stack.
        raise BadInput(f"{source.path} nests its values too deeply to be a catalogue; flatten it") from None


def _reader(name: str) -> Reader:
    module, function = FORMATS[name].split(":")
    reader: Reader = getattr(import_module(module), function)
    return reader


def _unknown(source: Source, format: str | None) -> str:
    known = ", ".join(FORMATS)
    if format is None and source.path == Path():  # what a blank path becomes
        return (
            f"the path of the catalogue is blank, or the current folder, which is none; give a file or folder ({known})"
        )
    if format is None and source.is_folder:
        return (
            f"{source.path} is a folder, and neither a data set (corpus.jsonl) nor one of ToolBench; name the files in "
            "it one by one"
        )
    if format is None and names_servers(source):
        return (
            f"{source.path} lists MCP servers, not their tools; ask each for them with "
            "`rewrite-index mcp tools.json --command '…'` (or --url), and give that file"
        )
    if format is None:
        return (
            f"{source.path} is in no format known here; say which with format, one of {known} "
            "(docs/guide.md tells what each looks like)"
        )
    near = difflib.get_close_matches(str(format), FORMATS, n=1)
    return f"unknown catalogue format {format!r}{f', did you mean {near[0]!r}?' if near else ''}; known are {known}"


def _collected(source: Source, entries: Iterable[tuple[str, Tool]]) -> list[Tool]:
    """The tools, once it is certain that there are some and that no two share an id."""
    tools: list[Tool] = []
    places: dict[str, str] = {}
    for place, tool in entries:
        if tool.id in places:
            raise BadInput(f"{place}: the id {tool.id!r} is already taken at {places[tool.id]}; give one another id")
        places[tool.id] = place
        tools.append(tool)
    if not tools:
        raise BadInput(f"{source.path} holds no tools; give a catalogue with at least one")
    return tools
