"""The JSON Schema of a tool's arguments: its top-level properties as parameters, and its text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

from retrievers.catalogue.fields import kind, text_or_nothing, tidy
from retrievers.catalogue.pointers import followed
from retrievers.catalogue.type_names import type_of
from retrievers.errors import BadInput
from retrievers.types import Parameter


def parameters_of(schema: Mapping[str, object], place: str) -> tuple[Parameter, ...]:
    """A schema's top-level properties; local $refs are looked up in the schema itself."""
    properties, required = properties_of(schema, place)
    return tuple(
        Parameter(
            name=tidy(name),
            type=type_of(value, schema),
            description=_description(value, schema),
            required=name in required,
        )
        for name, value in properties.items()
        if tidy(name)
    )


def properties_of(schema: Mapping[str, object], place: str) -> tuple[dict[str, object], set[str]]:
    """An object's properties and the names of those required, through $ref, allOf, anyOf and oneOf."""
    return _gathered(schema, schema, place, seen=set())


def _gathered(
    schema: Mapping[str, object], root: Mapping[str, object], place: str, seen: set[int]
) -> tuple[dict[str, object], set[str]]:
    seen.add(id(schema))  # a schema may be made of itself
    found: dict[str, object] = {}
    required: set[str] = set()
    for part, binding in _parts(schema, root):
        if id(part) not in seen:
            inner, needed = _gathered(part, root, place, seen)
            found |= {name: value for name, value in inner.items() if name not in found}
            required |= needed if binding else set()
    own = schema.get("properties")
    if own is not None and not isinstance(own, dict):
        raise BadInput(f"{place}: the schema's 'properties' has to be an object, found {kind(own)}; write it as {{…}}")
    found.update(own or {})
    names = schema.get("required")
    required |= {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
    # Drafts before 4 and many hand-written schemas say it inside the property.
    required |= {name for name, value in found.items() if isinstance(value, dict) and value.get("required") is True}
    return found, required


def _parts(schema: Mapping[str, object], root: Mapping[str, object]) -> Iterator[tuple[dict[str, object], bool]]:
    """The schemas this one is put together from, and whether what they require is required of all."""
    target = followed(schema, root)
    if isinstance(target, dict) and target is not schema:
        yield target, True
    for key, binding in (("allOf", True), ("anyOf", False), ("oneOf", False)):
        variants = schema.get(key)
        for variant in variants if isinstance(variants, list) else ():
            if isinstance(variant, dict):
                yield variant, binding


def _description(value: object, root: Mapping[str, object]) -> str:
    target = followed(value, root)
    own = text_or_nothing(value, "description") if isinstance(value, dict) else ""
    return own or (text_or_nothing(target, "description") if isinstance(target, dict) else "")


def compact(schema: Mapping[str, object]) -> str:
    """A schema as one line of JSON; "" for an empty one."""
    if not schema:
        return ""
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:  # Python's own json writes and reads NaN and Infinity, nobody else's does
        text = json.dumps(_finite(schema), ensure_ascii=False, separators=(",", ":"))
    return tidy(text)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
