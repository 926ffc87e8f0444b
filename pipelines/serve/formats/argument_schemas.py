"""JSON Schema of a tool's arguments that OpenAI, Anthropic and MCP clients accept.

A valid schema of the catalogue is kept. Otherwise it is repaired: type names of other languages are translated, broken
references dropped, and a choice between objects at the top (which both APIs refuse) becomes one object with the
properties of all. If it is still invalid, a schema is built from the tool's parameters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator

from pipelines.serve.formats.bounded_checks import BoundedCheck, TooMuch
from retrievers.catalogue.schema import properties_of, resolve_pointer
from retrievers.errors import BadInput
from retrievers.types import Parameter, Tool

Schema = dict[str, Any]
CHECK_SECONDS = 5.0
"""CPU seconds for the check of a schema; one that takes longer counts as invalid."""
TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
_TYPE_ALIASES = {
    "str": "string", "text": "string", "date": "string", "datetime": "string", "time": "string", "char": "string",
    "file": "string", "enum": "string", "int": "integer", "long": "integer", "float": "number", "double": "number",
    "decimal": "number", "bool": "boolean", "list": "array", "tuple": "array", "set": "array", "dict": "object",
    "map": "object", "hashmap": "object", "json": "object", "none": "null",
}  # fmt: skip
_CHOICES = ("oneOf", "anyOf", "allOf", "not", "enum", "const", "if", "then", "else", "$ref", "$dynamicRef")
_DROPPED = ("$schema", "$id", "$anchor", "$dynamicAnchor")
_LEGAL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def arguments_of(tool: Tool) -> Schema:
    """The schema of a tool's arguments, always an object. Do not modify it: it is cached."""
    return _arguments(tool.schema, tool.parameters)


def unchecked_arguments(tool: Tool) -> Schema:
    """The schema of a tool's arguments before it is checked and repaired, which takes milliseconds: for estimates."""
    try:
        given = json.loads(tool.schema) if tool.schema else None
        if isinstance(given, dict):
            flat = _as_object(given)
            return flat if isinstance(flat.get("required", []), list) else {**flat, "required": []}
    except (ValueError, RecursionError, BadInput):
        pass
    return _from_parameters(tool.parameters)


@lru_cache(maxsize=8192)
def _arguments(schema: str, parameters: tuple[Parameter, ...]) -> Schema:
    try:
        given = json.loads(schema) if schema else None
        if isinstance(given, dict):
            for candidate in (given, _repair(given, given)):
                flat = _as_object(candidate)
                if _is_valid(flat):
                    return flat
    except (ValueError, RecursionError, BadInput):
        pass  # no JSON, too deep, or too odd
    return _from_parameters(parameters)


def rename_properties(schema: Schema) -> tuple[Schema, dict[str, str]]:
    """The schema with property names that both APIs accept, and a map from new names to the original ones."""
    properties, originals, names = schema["properties"], dict[str, str](), dict[str, str]()
    for name in properties:
        names[name] = name
        if not _LEGAL_NAME.fullmatch(name):
            plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:58].strip("_") or "argument"
            candidates = (plain, *(f"{plain}_{number}" for number in range(2, 10_000)))
            legal = next(option for option in candidates if option not in properties and option not in originals)
            names[name], originals[legal] = legal, name
    if not originals:
        return schema, {}
    renamed = {**schema, "properties": {names[name]: value for name, value in properties.items()}}
    if "required" in schema:
        renamed["required"] = [names.get(name, name) for name in schema["required"]]
    return renamed, originals


def _is_valid(schema: Schema) -> bool:
    check = BoundedCheck(CHECK_SECONDS, of_schemas=True)
    check.start()
    try:
        if next(check.validator(Draft202012Validator.META_SCHEMA).iter_errors(schema), None):
            return False
    except TooMuch:
        return False
    return not any(resolve_pointer(schema, reference) is None for reference in _references(schema))


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [reference for inner in value.values() for reference in _references(inner)]
    return [reference for inner in value for reference in _references(inner)] if isinstance(value, list) else []


def _as_object(schema: Mapping[str, Any]) -> Schema:
    """The schema as one object, without a choice at the top."""
    if any(key in schema for key in _CHOICES) or schema.get("type", "object") != "object":
        properties, required = properties_of(schema, "")
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        kept: Schema = {**definitions, "properties": properties}
        if required:
            kept["required"] = sorted(required)
    else:
        kept = {key: value for key, value in schema.items() if key not in _DROPPED}
    if not isinstance(kept.get("properties"), dict):
        kept["properties"] = {}
    if isinstance(kept.get("required"), list):  # both APIs refuse a required property that is missing
        kept["required"] = [name for name in dict.fromkeys(map(str, kept["required"])) if name in kept["properties"]]
    return {**kept, "type": "object"}


def _repair(value: Any, root: Schema) -> Any:
    """A copy with common mistakes corrected; keywords that cannot be understood are left out."""
    if not isinstance(value, dict):
        return value if isinstance(value, bool) else {}
    repaired: Schema = {}
    for key, inner in value.items():
        if key in _MAPS and isinstance(inner, dict):
            repaired[key] = {name: _repair(child, root) for name, child in inner.items()}
        elif key in ("items", "additionalProperties", "not", "contains"):
            repaired[key] = _repair(inner[0] if isinstance(inner, list) and inner else inner, root)
        elif key in ("oneOf", "anyOf", "allOf") and isinstance(inner, list) and inner:
            repaired[key] = [_repair(child, root) for child in inner]
        elif (kept := _repair_keyword(key, inner, root)) is not None:
            repaired[key] = kept
    return repaired


def _repair_keyword(key: str, inner: Any, root: Schema) -> Any:
    """The value of a keyword that holds no schema; None to drop it."""
    match key:
        case "type":
            types = [_type(name) for name in (inner if isinstance(inner, list) else [inner])]
            known = [name for name in dict.fromkeys(types) if name]
            return known if len(known) > 1 else known[0] if known else None
        case "required" if isinstance(inner, list):
            return list(dict.fromkeys(name for name in inner if isinstance(name, str)))
        case "$ref":
            return inner if isinstance(inner, str) and isinstance(resolve_pointer(root, inner), dict) else None
        case "description" | "title" | "format":
            return inner if isinstance(inner, str) else None
        case "enum":
            return inner if isinstance(inner, list) and inner else None
        case "default" | "const":
            return inner
    return None


def _type(name: object) -> str | None:
    folded = name.strip().casefold() if isinstance(name, str) else ""
    return folded if folded in TYPES else _TYPE_ALIASES.get(folded)


def _from_parameters(parameters: tuple[Parameter, ...]) -> Schema:
    properties: Schema = {}
    for parameter in parameters:
        word = re.match(r"[A-Za-z]+", parameter.type)
        type_name, text = _type(word.group()) if word else None, parameter.description
        if parameter.type and not type_name:
            text = f"{text} ({parameter.type})".strip()
        properties[parameter.name] = {
            **({"type": type_name} if type_name else {}), **({"description": text} if text else {})
        }  # fmt: skip
    required = list(dict.fromkeys(parameter.name for parameter in parameters if parameter.required))
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}
