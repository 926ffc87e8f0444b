"""The arguments of an operation: one JSON Schema with the $refs replaced, and where each argument goes.

Left out is what a client may not send: read-only fields, and the headers that OpenAPI says to ignore. A body that is no
object is one argument named `body`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from retrievers.catalogue.fields import list_at, name_at, object_at, text_at
from retrievers.catalogue.openapi.references import References
from retrievers.catalogue.plain_text import plain_text
from retrievers.catalogue.schema import compact, properties_of

_IGNORED_HEADERS = {"accept", "content-type", "authorization"}
_STYLE = ("style", "explode", "allowReserved", "collectionFormat")


@dataclass(frozen=True, slots=True)
class Arguments:
    """Schema of all arguments, and the places they go to."""

    schema: dict[str, object]
    placed: dict[str, object]
    """`parameters`: name and place of each; `body`: its media type, and whether one argument is the whole of it."""

    @classmethod
    def of(
        cls, references: References, item: Mapping[str, object], operation: Mapping[str, object], location: str
    ) -> Arguments:
        """The arguments of one operation."""
        properties: dict[str, object] = {}
        required: list[str] = []
        places: list[dict[str, object]] = []
        for (goes, name), parameter in _parameters(references, item, operation, location).items():
            properties.setdefault(name, _parameter_schema(references, parameter, f"{location}, parameter {name!r}"))
            if parameter.get("required") is True and name not in required:
                required.append(name)
            style = {key: parameter[key] for key in _STYLE if isinstance(parameter.get(key), str | bool)}
            places.append({"name": name, "in": goes, **style})
        fields, needed, body = _body(references, operation, f"{location}, requestBody")
        for name, field in fields.items():
            # The body of PUT /pets/{id} often repeats the id: it is one argument, and the path's counts.
            if name not in properties:
                properties[name] = field
                required += [name] if name in needed else []
            places.append({"name": name, "in": "body"})
        schema: dict[str, object] = {"type": "object", "properties": properties}
        placed: dict[str, object] = {"parameters": places, **({"body": body} if body else {})}
        return cls({**schema, "required": required} if required else schema, placed)

    def compact(self) -> str:
        """The schema as one line of JSON."""
        return compact(self.schema)


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
        schema = _content_schema(references, parameter, location)[1]
    inlined = references.inline(schema, location)
    description = plain_text(text_at(parameter, "description", location))
    return {**inlined, "description": description} if description else inlined


def _content_schema(references: References, holder: Mapping[str, object], location: str) -> tuple[str, object]:
    """Media type and schema of a `content` map: JSON before forms, forms before the rest."""
    content = object_at(holder, "content", location)
    if not content:
        return "", {}
    # min keeps the document's order among equals
    media = min(content, key=lambda name: ("json" not in name.lower(), "form" not in name.lower()))
    return media, references.follow(content[media], f"{location}, {media}").get("schema") or {}


def _body(
    references: References, operation: Mapping[str, object], location: str
) -> tuple[dict[str, object], set[str], dict[str, object]]:
    """The fields of a request body, the required ones, and how the body is sent."""
    if operation.get("requestBody") is None:
        return {}, set(), {}
    body = references.follow(operation["requestBody"], location)
    media, content = _content_schema(references, body, location)
    schema = references.inline(content, location)
    binding = body.get("required") is True
    sending: dict[str, object] = {"media_type": media} if media else {}
    fields, needed = properties_of(schema, location)
    if fields:
        sent = {name: field for name, field in fields.items() if not _is_read_only(field)}
        return sent, needed if binding else set(), sending
    description = plain_text(text_at(body, "description", location))
    whole = {**schema, "description": description} if description else schema
    return {"body": whole}, {"body"} if binding else set(), {**sending, "whole": True}


def _is_read_only(field: object) -> bool:
    return isinstance(field, dict) and field.get("readOnly") is True
