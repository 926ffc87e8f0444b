"""The answer of an MCP server to tools/list.

Three shapes: the bare result {"tools": […]}, the JSON-RPC envelope {"result": {"tools": […]}}, a list of tools. A list
of answers, one per page or server, is read as one catalogue; a page with `nextCursor` must be followed by another.
`serverInfo` (from the initialize answer) beside the tools names the provider.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from retrievers.catalogue.fields import as_object, kind, list_at, name_at, object_at, text_at, text_or_nothing
from retrievers.catalogue.schema import compact, parameters_of
from retrievers.catalogue.source import CatalogueSource
from retrievers.errors import BadInput
from retrievers.types import Tool

_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


def read(source: CatalogueSource) -> Iterator[tuple[str, Tool]]:
    """The tools of one answer or of a list of answers, with their locations."""
    last: tuple[str, Mapping[str, object]] | None = None
    for last in source.entries():
        location, value = last
        yield from _entry(value, location, source)
    if last is not None and _has_next_page(last[1]):
        raise BadInput(
            f"{last[0]}: the server has more tools (nextCursor); put all its pages into one list, or let "
            "`rewrite-index mcp` ask for them"
        )


def _has_next_page(value: Mapping[str, object]) -> bool:
    result = value.get("result", value)
    return isinstance(result, dict) and bool(result.get("nextCursor"))


def _entry(
    value: Mapping[str, object], location: str, source: CatalogueSource, server: str = ""
) -> Iterator[tuple[str, Tool]]:
    """An answer, an envelope around one, or a tool on its own; a wrong tool of several is skipped."""
    server = source.provider or text_at(object_at(value, "serverInfo", location), "name", location) or server
    if "result" in value:
        yield from _entry(object_at(value, "result", location), location, source, server)
    elif "tools" in value:
        for number, tool in enumerate(list_at(value, "tools", location)):
            where = f"{location}, tools[{number}]"
            yield from _one(tool, where, source, server)
    elif "error" in value:
        error = value["error"]
        reason = " ".join(text_or_nothing(error, "message").split()) if isinstance(error, dict) else kind(error)
        raise BadInput(f"{location}: the server answered with an error ({reason}); ask it for tools/list again")
    elif value.keys() & {"name", "inputSchema"}:
        yield from _one(value, location, source, server)
    else:
        raise BadInput(f"{location}: no 'tools' and no 'result' in it; give the server's answer to tools/list")


def _one(value: object, location: str, source: CatalogueSource, server: str) -> Iterator[tuple[str, Tool]]:
    try:
        tool = tool_of(as_object(value, location), location, server)
    except BadInput as error:
        source.skip(error)
        return
    yield location, tool


def tool_of(value: Mapping[str, object], location: str, server: str) -> Tool:
    """One entry of a server's list."""
    name = name_at(value, "name", location)
    schema = object_at(value, "inputSchema", location)
    title = text_at(value, "title", location)
    return Tool(
        id=f"{server}/{name}" if server else name,
        name=name,
        description=text_at(value, "description", location) or title,
        parameters=parameters_of(schema, location),
        provider=server,
        schema=compact(schema),
        call=_call(value.get("annotations")),
    )


def _call(annotations: object) -> str:
    """The server's hints about what a call does."""
    given = annotations if isinstance(annotations, dict) else {}
    hints = {key: value for key, value in given.items() if key in _HINTS and isinstance(value, bool)}
    return compact({"annotations": hints}) if hints else ""
