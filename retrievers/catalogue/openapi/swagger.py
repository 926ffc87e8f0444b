"""Swagger 2.0 operations in the shape of OpenAPI 3: a body instead of body and form parameters, schemas under `schema`.

The $refs of a Swagger document point at `#/definitions` and `#/parameters`, and are followed as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from retrievers.catalogue.fields import list_at, name_at, text_at
from retrievers.catalogue.openapi.references import References

_OF_THE_PARAMETER = {"name", "in", "required", "description", "allowEmptyValue", "collectionFormat"}
_JSON, _FORM, _FILES = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"


def upgrade(
    references: References,
    document: Mapping[str, object],
    item: Mapping[str, object],
    operation: Mapping[str, object],
    location: str,
) -> tuple[dict[str, object], dict[str, object]]:
    """Path item and operation as OpenAPI 3 would write them; all parameters are the operation's."""
    merged: dict[tuple[str, str], dict[str, object]] = {}
    for holder in (item, operation):
        for number, value in enumerate(list_at(holder, "parameters", location)):
            where = f"{location}, parameters[{number}]"
            parameter = references.follow(value, where)
            goes = text_at(parameter, "in", where)
            # There is one body, under any name.
            merged[goes, "" if goes == "body" else name_at(parameter, "name", where)] = parameter
    plain = [_parameter(parameter) for (goes, _), parameter in merged.items() if goes not in ("body", "formData")]
    consumed = operation.get("consumes", document.get("consumes"))
    media = [name for name in consumed if isinstance(name, str)] if isinstance(consumed, list) else []
    upgraded = {**operation, "parameters": plain}
    form = {name: parameter for (goes, name), parameter in merged.items() if goes == "formData"}
    if ("body", "") in merged:
        upgraded["requestBody"] = _body(merged["body", ""], media)
    elif form:
        upgraded["requestBody"] = _form(form, media)
    return {key: value for key, value in item.items() if key != "parameters"}, upgraded


def _parameter(parameter: Mapping[str, object]) -> dict[str, object]:
    kept = {key: value for key, value in parameter.items() if key in _OF_THE_PARAMETER}
    return {**kept, "schema": _schema(parameter)}


def _schema(parameter: Mapping[str, object]) -> dict[str, object]:
    schema = {key: value for key, value in parameter.items() if key not in _OF_THE_PARAMETER}
    return {**schema, "type": "string", "format": "binary"} if schema.get("type") == "file" else schema


def _body(parameter: Mapping[str, object], media: list[str]) -> dict[str, object]:
    kind = next((name for name in media if "json" in name.lower()), media[0] if media else _JSON)
    kept = {key: parameter[key] for key in ("description", "required") if key in parameter}
    return {**kept, "content": {kind: {"schema": parameter.get("schema")}}}


def _form(form: Mapping[str, Mapping[str, object]], media: list[str]) -> dict[str, object]:
    has_file = any(parameter.get("type") == "file" for parameter in form.values())
    kind = next((name for name in media if "form" in name.lower()), _FILES if has_file else _FORM)
    properties = {}
    for name, parameter in form.items():
        described = {"description": parameter["description"]} if parameter.get("description") else {}
        properties[name] = {**_schema(parameter), **described}
    required = [name for name, parameter in form.items() if parameter.get("required") is True]
    schema = {"type": "object", "properties": properties, "required": required}
    return {"required": bool(required), "content": {kind: {"schema": schema}}}
