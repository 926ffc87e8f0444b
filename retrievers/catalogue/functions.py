"""Function definitions of OpenAI and Anthropic.

    {"type": "function", "function": {"name", "description", "parameters"}}   OpenAI chat completions
    {"type": "function", "name", "description", "parameters"}                 OpenAI responses
    {"name", "description", "parameters"}                                     OpenAI's older `functions`
    {"name", "description", "input_schema"}                                   Anthropic

In a JSON list, under "tools" or "functions", or one per line. The name is the id: a model calls by name, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from retrievers.catalogue.fields import as_object, list_at, name_at, object_at, text_at
from retrievers.catalogue.schema import compact, parameters_of
from retrievers.catalogue.source import CatalogueSource
from retrievers.errors import BadInput
from retrievers.types import Tool


def read(source: CatalogueSource) -> Iterator[tuple[str, Tool]]:
    """The functions of a list, a wrapped list or a JSONL file, with their locations."""
    is_one_object = not source.is_lines and isinstance(source.document, dict)
    for location, value in source.entries():
        wrapper = next((name for name in ("tools", "functions") if is_one_object and name in value), None)
        if wrapper is None:
            yield from _one(value, location, source)
            continue
        for number, inner in enumerate(list_at(value, wrapper, location)):
            where = f"{location}, {wrapper}[{number}]"
            yield from _one(inner, where, source)


def _one(value: object, location: str, source: CatalogueSource) -> Iterator[tuple[str, Tool]]:
    try:
        tool = _tool(as_object(value, location), location)
    except BadInput as error:
        source.skip(error)
        return
    yield location, tool


def _tool(value: Mapping[str, object], location: str) -> Tool:
    inner = object_at(value, "function", location) if "function" in value else value
    if "name" not in inner and isinstance(value.get("type"), str) and value["type"] != "function":
        # OpenAI's own tools, such as web_search, are in the same list.
        raise BadInput(
            f"{location}: a tool of type {value['type']!r} has no name; keep only functions in the catalogue"
        )
    name = name_at(inner, "name", location)
    schema = object_at(inner, "input_schema" if "input_schema" in inner else "parameters", location)
    return Tool(
        id=name,
        name=name,
        description=text_at(inner, "description", location),
        parameters=parameters_of(schema, location),
        schema=compact(schema),
    )
