"""Function definitions as they are sent to OpenAI and Anthropic.

    {"type": "function", "function": {"name", "description", "parameters"}}   OpenAI chat completions
    {"type": "function", "name", "description", "parameters"}                 OpenAI responses
    {"name", "description", "parameters"}                                     OpenAI's older `functions`
    {"name", "description", "input_schema"}                                   Anthropic

In a JSON list, under "tools" or "functions", or one a line. The name is the id: a model calls by name, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from retrievers.catalogue.fields import as_object, list_at, name_at, object_at, text_at
from retrievers.catalogue.schema import compact, parameters_of
from retrievers.catalogue.source import Source
from retrievers.errors import BadInput
from retrievers.types import Tool


def read(source: Source) -> Iterator[tuple[str, Tool]]:
    """The functions of a list, a wrapped list or a JSONL file, with their places."""
    if source.is_lines:
        for place, row in source.rows():
            yield place, _tool(row, place)
        return
    for place, value in _values(source):
        yield place, _tool(as_object(value, place), place)


def _values(source: Source) -> Iterator[tuple[str, object]]:
    document = source.document
    if isinstance(document, list):
        yield from ((f"{source.path}, entry {number + 1}", value) for number, value in enumerate(document))
        return
    document = as_object(document, str(source.path))
    wrapper = next((name for name in ("tools", "functions") if name in document), None)
    if wrapper is None:
        yield str(source.path), document
        return
    for number, value in enumerate(list_at(document, wrapper, str(source.path))):
        yield f"{source.path}, {wrapper}[{number}]", value


def _tool(value: Mapping[str, object], place: str) -> Tool:
    inner = object_at(value, "function", place) if "function" in value else value
    if "name" not in inner and isinstance(value.get("type"), str) and value["type"] != "function":
        # OpenAI's own tools, such as web_search, stand in the same list.
        raise BadInput(f"{place}: a tool of type {value['type']!r} has no name; keep only functions in the catalogue")
    name = name_at(inner, "name", place)
    schema = object_at(inner, "input_schema" if "input_schema" in inner else "parameters", place)
    return Tool(
        id=name,
        name=name,
        description=text_at(inner, "description", place),
        parameters=parameters_of(schema, place),
        schema=compact(schema),
    )
