"""OpenAPI 3.x: every operation is a tool, its parameters and the fields of its JSON body are the arguments.

The arguments' schema is assembled here, with its $refs replaced. Left out is what a client may not send: read-only
fields, and the headers that OpenAPI says to ignore. A body that is no object is one argument named `body`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from retrievers.catalogue.fields import as_object, list_at, name_at, object_at, text_at, tidy
from retrievers.catalogue.references import References
from retrievers.catalogue.schema import compact, parameters_of, properties_of
from retrievers.catalogue.source import CatalogueSource
from retrievers.errors import BadInput
from retrievers.types import Tool

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")
_IGNORED_HEADERS = {"accept", "content-type", "authorization"}


def read(source: CatalogueSource) -> Iterator[tuple[str, Tool]]:
    """The operations of a document, in its order, with their locations."""
    document = _document(source)
    references = References(document)
    title = name_at(object_at(document, "info", f"{source.path}, info"), "title", f"{source.path}, info")
    slug = re.sub(r"[\W_]+", "-", title.lower()).strip("-") or "api"
    for path, value in object_at(document, "paths", str(source.path)).items():
        if not path.startswith("/"):  # x-extensions
            continue
        item = references.follow(value, f"{source.path}, {tidy(path)}")
        for method in METHODS:
            if item.get(method) is None:
                continue
            location = f"{source.path}, {method.upper()} {tidy(path)}"
            operation = as_object(item[method], location)
            schema = _arguments(references, item, operation, location)
            name = text_at(operation, "operationId", location) or f"{method.upper()} {tidy(path)}"
            tool = Tool(
                id=f"{slug}/{name}",
                name=name,
                description=_description(operation, location) or _description(item, location),
                parameters=parameters_of(schema, location),
                category=_first_tag(operation, location),
                provider=title,
                schema=compact(schema),
            )
            yield location, tool


def _document(source: CatalogueSource) -> dict[str, object]:
    if source.text.lstrip().startswith(("{", "[")):
        value = source.document
    else:
        from retrievers.catalogue.yaml_values import yaml_document

        value = yaml_document(source.text, source.path)
    document = as_object(value, str(source.path))
    if "swagger" in document:
        version = tidy(str(document["swagger"]))[:20]
        raise BadInput(
            f"{source.path} is Swagger {version}; convert it to OpenAPI 3.x first, e.g. with swagger2openapi"
        )
    version = tidy(str(document.get("openapi", "")))[:20]
    if not re.match(r"3(\.|$)", version):
        found_version = f"says OpenAPI {version!r}" if version else "has no 'openapi' version"
        raise BadInput(f"{source.path} {found_version}; give an OpenAPI 3.x document")
    return document


def _description(value: Mapping[str, object], location: str) -> str:
    summary, description = text_at(value, "summary", location), text_at(value, "description", location)
    return description if summary in description else f"{summary}\n{description}".strip()


def _first_tag(operation: Mapping[str, object], location: str) -> str:
    tags = list_at(operation, "tags", location)[:1]
    return text_at({"tags[0]": tags[0]}, "tags[0]", location) if tags else ""


def _arguments(
    references: References, item: Mapping[str, object], operation: Mapping[str, object], location: str
) -> dict[str, object]:
    """One JSON Schema for all arguments of the operation."""
    properties: dict[str, object] = {}
    required: list[str] = []
    for (_, name), parameter in _parameters(references, item, operation, location).items():
        properties.setdefault(name, _parameter_schema(references, parameter, f"{location}, parameter {name!r}"))
        if parameter.get("required") is True and name not in required:
            required.append(name)
    fields, needed = _body(references, operation, f"{location}, requestBody")
    for name, field in fields.items():
        # The body of PUT /pets/{id} often repeats the id: it is one argument, and the path's counts.
        if name not in properties:
            properties[name] = field
            required += [name] if name in needed else []
    schema: dict[str, object] = {"type": "object", "properties": properties}
    return {**schema, "required": required} if required else schema


def _parameters(
    references: References, item: Mapping[str, object], operation: Mapping[str, object], location: str
) -> dict[tuple[str, str], dict[str, object]]:
    """The parameters by (in, name); the operation's replace the path's."""
    parameters: dict[tuple[str, str], dict[str, object]] = {}
    for holder in (item, operation):
        for number, value in enumerate(list_at(holder, "parameters", location)):
            where = f"{location}, parameters[{number}]"
            parameter = references.follow(value, where)
            name, goes = name_at(parameter, "name", where), text_at(parameter, "in", where)
            if not (goes == "header" and name.lower() in _IGNORED_HEADERS):
                parameters[goes, name] = parameter
    return parameters


def _parameter_schema(references: References, parameter: Mapping[str, object], location: str) -> dict[str, object]:
    schema = parameter.get("schema")
    if schema is None:
        schema = _content_schema(references, parameter, location)
    inlined = references.inline(schema, location)
    description = text_at(parameter, "description", location)
    return {**inlined, "description": description} if description else inlined


def _content_schema(references: References, holder: Mapping[str, object], location: str) -> object:
    """The schema of a `content` map: JSON before forms, forms before the rest."""
    content = object_at(holder, "content", location)
    if not content:
        return {}
    # min keeps the document's order among equals
    kind = min(content, key=lambda media: ("json" not in media.lower(), "form" not in media.lower()))
    return references.follow(content[kind], f"{location}, {kind}").get("schema") or {}


def _body(references: References, operation: Mapping[str, object], location: str) -> tuple[dict[str, object], set[str]]:
    """The fields of a request body, and the required ones."""
    if operation.get("requestBody") is None:
        return {}, set()
    body = references.follow(operation["requestBody"], location)
    schema = references.inline(_content_schema(references, body, location), location)
    binding = body.get("required") is True
    fields, needed = properties_of(schema, location)
    if fields:
        sent = {name: field for name, field in fields.items() if not _is_read_only(field)}
        return sent, needed if binding else set()
    description = text_at(body, "description", location)
    whole = {**schema, "description": description} if description else schema
    return {"body": whole}, {"body"} if binding else set()


def _is_read_only(field: object) -> bool:
    return isinstance(field, dict) and field.get("readOnly") is True
