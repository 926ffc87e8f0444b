"""OpenAPI 3.x and Swagger 2.0: every operation is a tool.

A tool's id is the title and the operationId, or method and path where there is none, or where an earlier operation of
the document has it. Parameters and the fields of the JSON body are the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from retrievers.catalogue.fields import as_object, list_at, name_at, object_at, text_at, tidy
from retrievers.catalogue.openapi.arguments import Arguments
from retrievers.catalogue.openapi.calls import call_of
from retrievers.catalogue.openapi.references import References, load
from retrievers.catalogue.openapi.swagger import upgrade
from retrievers.catalogue.plain_text import plain_text
from retrievers.catalogue.schema import parameters_of
from retrievers.catalogue.source import CatalogueSource
from retrievers.errors import BadInput
from retrievers.types import Tool

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")


def slug(title: str) -> str:
    """A title as the first part of ids: lower case with hyphens."""
    return re.sub(r"[\W_]+", "-", title.lower()).strip("-") or "api"


def read(source: CatalogueSource) -> Iterator[tuple[str, Tool]]:
    """The operations of a document, in its order, with their locations."""
    document = _document(source)
    references = References(document, source)
    info = f"{source.path}, info"
    title = source.provider or name_at(object_at(document, "info", info), "title", info)
    taken: set[str] = set()
    for path, value in object_at(document, "paths", str(source.path)).items():
        if not path.startswith("/"):  # x-extensions
            continue
        try:
            item = references.follow(value, f"{source.path}, {tidy(path)}")
        except BadInput as error:
            source.skip(error)
            continue
        for method in METHODS:
            if item.get(method) is None:
                continue
            location = f"{source.path}, {method.upper()} {tidy(path)}"
            try:
                tool = _tool(references, document, item, (method, path), title, taken, location)
            except BadInput as error:
                source.skip(error)
                continue
            taken.add(tool.id)
            yield location, tool


def _tool(
    references: References,
    document: Mapping[str, object],
    item: Mapping[str, object],
    endpoint: tuple[str, str],
    title: str,
    taken: set[str],
    location: str,
) -> Tool:
    method, path = endpoint
    operation = references.follow(item[method], location)
    if "swagger" in document:
        item, operation = upgrade(references, document, item, operation, location)
    arguments = Arguments.of(references, item, operation, location)
    fallback = f"{method.upper()} {tidy(path)}"
    name = text_at(operation, "operationId", location) or fallback
    tool_id = f"{slug(title)}/{name}"
    return Tool(
        # Documents that were joined by a script often repeat operationIds.
        id=f"{slug(title)}/{fallback}" if tool_id in taken else tool_id,
        name=name,
        description=_description(operation, location) or _description(item, location),
        parameters=parameters_of(arguments.schema, location),
        category=_first_tag(operation, location),
        provider=title,
        schema=arguments.compact(),
        call=call_of(references, document, item, operation, endpoint, arguments.placed),
    )


def _document(source: CatalogueSource) -> dict[str, object]:
    document = as_object(load(source), str(source.path))
    key, version = next(((key, document[key]) for key in ("swagger", "openapi") if key in document), ("", ""))
    name, version = key.title().replace("api", "API"), tidy(str(version))[:20]
    if re.match(r"2(\.|$)" if key == "swagger" else r"3(\.|$)", version):
        return document
    found_version = f"says {name} {version!r}" if key else "has no 'openapi' version"
    raise BadInput(f"{source.path} {found_version}; give an OpenAPI 3.x or Swagger 2.0 document")


def _description(value: Mapping[str, object], location: str) -> str:
    summary, description = (plain_text(text_at(value, key, location)) for key in ("summary", "description"))
    return description if summary in description else f"{summary}\n{description}".strip()


def _first_tag(operation: Mapping[str, object], location: str) -> str:
    tags = list_at(operation, "tags", location)[:1]
    return text_at({"tags[0]": tags[0]}, "tags[0]", location) if tags else ""
