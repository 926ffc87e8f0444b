"""The JSON Schema of a tool's arguments: its top-level properties as parameters, their types, its text.

A type is short enough for brackets behind a parameter's name:

    {"type": ["string", "null"]}                        string|null
    {"enum": ["celsius", "fahrenheit"]}                 enum(celsius, fahrenheit)
    {"type": "array", "items": {"type": "integer"}}     array[integer]
    {"anyOf": [{"type": "integer"}, {"type": "null"}]}  integer|null

Schemas are often slightly wrong: parts that cannot be understood are left out, never refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from retrievers.catalogue.fields import kind, text_or_nothing, tidy
from retrievers.errors import BadInput
from retrievers.types import Parameter

MAX_CHAIN = 8  # $refs to $refs that are followed: more than this is a circle
MAX_DEPTH = 4  # levels of anyOf and items that are followed: recursive schemas have no end
MAX_CHOICES = 8  # choices that are listed: all currencies would drown the description
MAX_TYPE = 200  # characters of a type


def resolve_pointer(root: object, reference: str) -> object:
    """The value at a local JSON pointer, such as `#/$defs/City`; None for none."""
    if not reference.startswith("#"):
        return None
    value = root
    for step in unquote(reference[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and len(step) < 10:
            value = value[int(step)] if int(step) < len(value) else None
        else:
            return None
    return value


def follow(value: object, root: object) -> object:
    """The end of a chain of local $refs: the value itself without a $ref, None where the chain breaks."""
    for _ in range(MAX_CHAIN):
        if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
            return value
        value = resolve_pointer(root, value["$ref"])
    return None


def parameters_of(schema: Mapping[str, object], location: str) -> tuple[Parameter, ...]:
    """A schema's top-level properties; local $refs are looked up in the schema itself."""
    properties, required = properties_of(schema, location)
    return tuple(
        Parameter(tidy(name), type_of(value, schema), _description(value, schema), name in required)
        for name, value in properties.items()
        if tidy(name)
    )


def properties_of(schema: Mapping[str, object], location: str) -> tuple[dict[str, object], set[str]]:
    """An object's properties and the names of those required, through $ref, allOf, anyOf and oneOf."""
    return _collect(schema, schema, location, seen=set())


def _collect(
    schema: Mapping[str, object], root: Mapping[str, object], location: str, seen: set[int]
) -> tuple[dict[str, object], set[str]]:
    seen.add(id(schema))  # a schema may contain itself
    properties: dict[str, object] = {}
    required: set[str] = set()
    for part, binding in _parts(schema, root):
        if id(part) not in seen:
            inner, needed = _collect(part, root, location, seen)
            properties |= {name: value for name, value in inner.items() if name not in properties}
            required |= needed if binding else set()
    own = schema.get("properties")
    if own is not None and not isinstance(own, dict):
        raise BadInput(
            f"{location}: the schema's 'properties' has to be an object, found {kind(own)}; write it as {{…}}"
        )
    properties.update(own or {})
    names = schema.get("required")
    required |= {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
    # Drafts before 4 and many hand-written schemas say it inside the property.
    required |= {
        name for name, value in properties.items() if isinstance(value, dict) and value.get("required") is True
    }
    return properties, required


def _parts(schema: Mapping[str, object], root: Mapping[str, object]) -> Iterator[tuple[dict[str, object], bool]]:
    """The schemas that this one combines, and whether their required properties are always required."""
    target = follow(schema, root)
    if isinstance(target, dict) and target is not schema:
        yield target, True
    for key, binding in (("allOf", True), ("anyOf", False), ("oneOf", False)):
        variants = schema.get(key)
        for variant in variants if isinstance(variants, list) else ():
            if isinstance(variant, dict):
                yield variant, binding


def _description(value: object, root: Mapping[str, object]) -> str:
    texts = (text_or_nothing(one, "description") for one in (value, follow(value, root)) if isinstance(one, dict))
    return next((text for text in texts if text), "")


def type_of(value: object, root: Mapping[str, object]) -> str:
    """A property's type; "" where the schema has none. Local $refs are looked up in `root`."""
    name = _type(value, root, 0)
    return name if len(name) <= MAX_TYPE else f"{name[: MAX_TYPE - 1]}…"


def _type(value: object, root: Mapping[str, object], depth: int) -> str:
    value = follow(value, root)
    if not isinstance(value, dict) or depth > MAX_DEPTH:
        return ""
    names = _choices(value) or _type_names(value, root, depth) or _variants(value, root, depth)
    if names and value.get("nullable") is True:  # OpenAPI 3.0's way to say null
        names = [*names, "null"]
    return "|".join(dict.fromkeys(names))


def _choices(value: Mapping[str, object]) -> list[str]:
    choices = value.get("enum")
    if not isinstance(choices, list) and "const" in value:
        choices = [value["const"]]
    if not isinstance(choices, list) or not choices:
        return []
    shown = [tidy(one if isinstance(one, str) else json.dumps(one))[:40] for one in choices[:MAX_CHOICES]]
    return [f"enum({', '.join([*shown, '…'] if len(choices) > MAX_CHOICES else shown)})"]


def _type_names(value: Mapping[str, object], root: Mapping[str, object], depth: int) -> list[str]:
    types = value.get("type")
    names = [tidy(name) for name in (types if isinstance(types, list) else [types]) if isinstance(name, str)]
    if not names:
        names = [guess for guess, sign in (("object", "properties"), ("array", "items")) if sign in value][:1]
    inner = _type(value.get("items"), root, depth + 1) if "array" in names else ""
    return [f"array[{inner}]" if name == "array" and inner else name for name in names if name]


def _variants(value: Mapping[str, object], root: Mapping[str, object], depth: int) -> list[str]:
    for key in ("anyOf", "oneOf", "allOf"):
        variants = value.get(key)
        if isinstance(variants, list):
            # No more of them than choices: variants that all point back here multiply at every level.
            names = [_type(variant, root, depth + 1) for variant in variants[:MAX_CHOICES]]
            return [name for name in names if name][: 1 if key == "allOf" else None]
    return []


def compact(schema: Mapping[str, object]) -> str:
    """A schema as one line of JSON; "" for an empty one."""
    if not schema:
        return ""
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:  # Python's json reads NaN and Infinity; other readers do not
        text = json.dumps(_finite(schema), ensure_ascii=False, separators=(",", ":"))
    return tidy(text)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
