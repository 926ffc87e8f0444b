"""A tool's arguments as JSON Schema that OpenAI, Anthropic and MCP clients take, whatever the catalogue had.

The catalogue's own schema is kept where it is one. Type names of other languages are translated, references that lead
nowhere are dropped, a choice between several objects at the top (which both APIs refuse) becomes one object with the
properties of all. What still is no JSON Schema is made anew from the tool's parameters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from retrievers.catalogue.pointers import pointed
from retrievers.catalogue.schema import properties_of
from retrievers.errors import BadInput
from retrievers.types import Parameter, Tool

Schema = dict[str, Any]
TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
_OTHERS = {
    "str": "string", "text": "string", "date": "string", "datetime": "string", "time": "string", "char": "string",
    "file": "string", "enum": "string", "int": "integer", "long": "integer", "float": "number", "double": "number",
    "decimal": "number", "bool": "boolean", "list": "array", "tuple": "array", "set": "array", "dict": "object",
    "map": "object", "hashmap": "object", "json": "object", "none": "null",
}  # fmt: skip
_CHOICES = ("oneOf", "anyOf", "allOf", "not", "enum", "const", "if", "then", "else", "$ref", "$dynamicRef")
_DROPPED = ("$schema", "$id", "$anchor", "$dynamicAnchor")
_LEGAL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def arguments_of(tool: Tool) -> Schema:
    """The schema of a tool's arguments: an object, always. Not to be changed: it is remembered."""
    return _arguments(tool.schema, tool.parameters)


@lru_cache(maxsize=8192)
def _arguments(schema: str, parameters: tuple[Parameter, ...]) -> Schema:
    try:
        given = json.loads(schema) if schema else None
        if isinstance(given, dict):
            for candidate in (given, _repaired(given, given)):
                found = _object(candidate)
                if _valid(found):
                    return found
    except (ValueError, RecursionError, BadInput):
        pass  # no JSON, too deep, or not to be understood
    return _from_parameters(parameters)


def renamed(schema: Schema) -> tuple[Schema, dict[str, str]]:
    """The schema with property names that both APIs take, and what they stand for."""
    properties, back, names = schema["properties"], dict[str, str](), dict[str, str]()
    for name in properties:
        legal = name
        if not _LEGAL.fullmatch(name):
            plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:58].strip("_") or "argument"
            legal = next(
                each
                for each in (plain, *(f"{plain}_{number}" for number in range(2, 10_000)))
                if each not in properties and each not in back
            )
            back[legal] = name
        names[name] = legal
    if not back:
        return schema, {}
    found = {**schema, "properties": {names[name]: value for name, value in properties.items()}}
    if "required" in schema:
        found["required"] = [names.get(name, name) for name in schema["required"]]
    return found, back


def _valid(schema: Schema) -> bool:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return False
    return not any(pointed(schema, reference) is None for reference in _references(schema))


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [each for inner in value.values() for each in _references(inner)]
    return [each for inner in value for each in _references(inner)] if isinstance(value, list) else []


def _object(schema: Mapping[str, Any]) -> Schema:
    """One object at the top, without a choice there."""
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
    if isinstance(kept.get("required"), list):  # both APIs refuse what is required and not there
        kept["required"] = [name for name in dict.fromkeys(map(str, kept["required"])) if name in kept["properties"]]
    return {**kept, "type": "object"}


def _repaired(value: Any, root: Schema) -> Any:
    """A schema with what is commonly wrong in it put right; what cannot be understood is left out."""
    if not isinstance(value, dict):
        return value if isinstance(value, bool) else {}
    found: Schema = {}
    for key, inner in value.items():
        if key in _MAPS and isinstance(inner, dict):
            found[key] = {name: _repaired(each, root) for name, each in inner.items()}
        elif key in ("items", "additionalProperties", "not", "contains"):
            found[key] = _repaired(inner[0] if isinstance(inner, list) and inner else inner, root)
        elif key in ("oneOf", "anyOf", "allOf") and isinstance(inner, list) and inner:
            found[key] = [_repaired(each, root) for each in inner]
        elif (kept := _word(key, inner, root)) is not None:
            found[key] = kept
    return found


def _word(key: str, inner: Any, root: Schema) -> Any:
    """The value of a keyword that holds no schema; None where it is not kept."""
    match key:
        case "type":
            kinds = [_type(each) for each in (inner if isinstance(inner, list) else [inner])]
            known = [each for each in dict.fromkeys(kinds) if each]
            return known if len(known) > 1 else known[0] if known else None
        case "required" if isinstance(inner, list):
            return list(dict.fromkeys(name for name in inner if isinstance(name, str)))
        case "$ref":
            return inner if isinstance(inner, str) and isinstance(pointed(root, inner), dict) else None
        case "description" | "title" | "format":
            return inner if isinstance(inner, str) else None
        case "enum":
            return inner if isinstance(inner, list) and inner else None
        case "default" | "const":
            return inner
    return None


def _type(name: object) -> str | None:
    folded = name.strip().casefold() if isinstance(name, str) else ""
    return folded if folded in TYPES else _OTHERS.get(folded)


def _from_parameters(parameters: tuple[Parameter, ...]) -> Schema:
    properties: Schema = {}
    for one in parameters:
        told = re.match(r"[A-Za-z]+", one.type)
        kind = _type(told.group()) if told else None
        said = one.description if kind or not one.type else f"{one.description} ({one.type})".strip()
        properties[one.name] = {**({"type": kind} if kind else {}), **({"description": said} if said else {})}
    required = list(dict.fromkeys(one.name for one in parameters if one.required))
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}
