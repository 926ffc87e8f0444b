"""OpenAPI 3.x: every operation is a tool, its parameters and the fields of its JSON body are the arguments.

The arguments' schema is put together here and stands alone: $refs are spelled out. What a client may not send is left
out: read-only fields, and the headers that OpenAPI itself says to ignore. A body that is no object is one argument
named `body`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from retrievers.catalogue.fields import as_object, list_at, name_at, object_at, text_at, tidy
from retrievers.catalogue.references import References
from retrievers.catalogue.schema import compact, parameters_of, properties_of
from retrievers.catalogue.source import Source
from retrievers.errors import BadInput
from retrievers.types import Tool

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")
_IGNORED_HEADERS = {"accept", "content-type", "authorization"}


def read(source: Source) -> Iterator[tuple[str, Tool]]:
    """The operations of a document, in its order, with their places."""
    document = _document(source)
    references = References(document)
    title = name_at(object_at(document, "info", f"{source.path}, info"), "title", f"{source.path}, info")
    slug = re.sub(r"[\W_]+", "-", title.lower()).strip("-") or "api"
    for path, value in object_at(document, "paths", str(source.path)).items():
        if not path.startswith("/"):  # x-extensions
            continue
        item = references.followed(value, f"{source.path}, {tidy(path)}")
        for method in METHODS:
            if item.get(method) is None:
                continue
            place = f"{source.path}, {method.upper()} {tidy(path)}"
            operation = as_object(item[method], place)
            schema = _arguments(references, item, operation, place)
            name = text_at(operation, "operationId", place) or f"{method.upper()} {tidy(path)}"
            tool = Tool(
                id=f"{slug}/{name}",
                name=name,
                description=_description(operation, place) or _description(item, place),
                parameters=parameters_of(schema, place),
                category=_first_tag(operation, place),
                provider=title,
                schema=compact(schema),
            )
            yield place, tool


def _document(source: Source) -> dict[str, object]:
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
        said = f"says OpenAPI {version!r}" if version else "has no 'openapi' version"
        raise BadInput(f"{source.path} {said}; give an OpenAPI 3.x document")
    return document


def _description(value: Mapping[str, object], place: str) -> str:
    summary, description = text_at(value, "summary", place), text_at(value, "description", place)
    return description if summary in description else f"{summary}\n{description}".strip()


def _first_tag(operation: Mapping[str, object], place: str) -> str:
    tags = list_at(operation, "tags", place)[:1]
    return text_at({"tags[0]": tags[0]}, "tags[0]", place) if tags else ""


def _arguments(
    references: References, item: Mapping[str, object], operation: Mapping[str, object], place: str
) -> dict[str, object]:
    """One JSON Schema for all that the operation takes."""
    properties: dict[str, object] = {}
    required: list[str] = []
    for (_, name), parameter in _parameters(references, item, operation, place).items():
        properties.setdefault(name, _parameter_schema(references, parameter, f"{place}, parameter {name!r}"))
        if parameter.get("required") is True and name not in required:
            required.append(name)
    fields, needed = _body(references, operation, f"{place}, requestBody")
    for name, field in fields.items():
        # The body of PUT /pets/{id} often repeats the id: it is one argument, and the path's is the binding one.
        if name not in properties:
            properties[name] = field
            required += [name] if name in needed else []
    schema: dict[str, object] = {"type": "object", "properties": properties}
    return {**schema, "required": required} if required else schema


def _parameters(
    references: References, item: Mapping[str, object], operation: Mapping[str, object], place: str
) -> dict[tuple[str, str], dict[str, object]]:
    """The parameters by where they go and what they are called; the operation's replace the path's."""
    found: dict[tuple[str, str], dict[str, object]] = {}
    for holder in (item, operation):
        for number, value in enumerate(list_at(holder, "parameters", place)):
            where = f"{place}, parameters[{number}]"
            parameter = references.followed(value, where)
            name, goes = name_at(parameter, "name", where), text_at(parameter, "in", where)
            if not (goes == "header" and name.lower() in _IGNORED_HEADERS):
                found[goes, name] = parameter
    return found


def _parameter_schema(references: References, parameter: Mapping[str, object], place: str) -> dict[str, object]:
    schema = parameter.get("schema")
    if schema is None:
        schema = _content_schema(references, parameter, place)
    spelled = references.spelled_out(schema, place)
    description = text_at(parameter, "description", place)
    return {**spelled, "description": description} if description else spelled


def _content_schema(references: References, holder: Mapping[str, object], place: str) -> object:
    """The schema of a `content` map: JSON before forms, forms before the rest."""
    content = object_at(holder, "content", place)
    if not content:
        return {}
    # min keeps the document's order among equals
    kind = min(content, key=lambda media: ("json" not in media.lower(), "form" not in media.lower()))
    return references.followed(content[kind], f"{place}, {kind}").get("schema") or {}


def _body(references: References, operation: Mapping[str, object], place: str) -> tuple[dict[str, object], set[str]]:
    """The fields of a request body, and those that must be there."""
    if operation.get("requestBody") is None:
        return {}, set()
    body = references.followed(operation["requestBody"], place)
    schema = references.spelled_out(_content_schema(references, body, place), place)
    binding = body.get("required") is True
    fields, needed = properties_of(schema, place)
    if fields:
        sent = {name: field for name, field in fields.items() if not _is_read_only(field)}
        return sent, needed if binding else set()
    description = text_at(body, "description", place)
    whole = {**schema, "description": description} if description else schema
    return {"body": whole}, {"body"} if binding else set()


def _is_read_only(field: object) -> bool:
    return isinstance(field, dict) and field.get("readOnly") is True
