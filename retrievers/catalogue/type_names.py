"""A JSON Schema's type, short enough to stand in brackets behind a parameter's name.

    {"type": ["string", "null"]}                        string|null
    {"enum": ["celsius", "fahrenheit"]}                 enum(celsius, fahrenheit)
    {"type": "array", "items": {"type": "integer"}}     array[integer]
    {"anyOf": [{"type": "integer"}, {"type": "null"}]}  integer|null

Schemas in the wild are often slightly wrong: what cannot be understood is left out, never refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from retrievers.catalogue.fields import tidy
from retrievers.catalogue.pointers import followed

DEEPEST = 4
"""Levels of anyOf and items that are followed: recursive schemas have no end."""
MOST_CHOICES = 8
"""Choices that are spelled out: a list of all currencies would drown the description."""
LONGEST = 200
"""Characters of a type; nobody reads further."""


def type_of(value: object, root: Mapping[str, object]) -> str:
    """A property's type; "" where the schema says nothing. Local $refs are looked up in `root`."""
    name = _type(value, root, 0)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _type(value: object, root: Mapping[str, object], depth: int) -> str:
    value = followed(value, root)
    if not isinstance(value, dict) or depth > DEEPEST:
        return ""
    names = _choices(value) or _named(value, root, depth) or _variants(value, root, depth)
    if names and value.get("nullable") is True:  # OpenAPI 3.0's way to say null
        names = [*names, "null"]
    return "|".join(dict.fromkeys(names))


def _choices(value: Mapping[str, object]) -> list[str]:
    choices = value.get("enum")
    if not isinstance(choices, list) and "const" in value:
        choices = [value["const"]]
    if not isinstance(choices, list) or not choices:
        return []
    shown = [tidy(one if isinstance(one, str) else json.dumps(one))[:40] for one in choices[:MOST_CHOICES]]
    return [f"enum({', '.join([*shown, '…'] if len(choices) > MOST_CHOICES else shown)})"]


def _named(value: Mapping[str, object], root: Mapping[str, object], depth: int) -> list[str]:
    kinds = value.get("type")
    names = [tidy(name) for name in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(name, str)]
    if not names:
        names = [guess for guess, sign in (("object", "properties"), ("array", "items")) if sign in value][:1]
    inner = _type(value.get("items"), root, depth + 1) if "array" in names else ""
    return [f"array[{inner}]" if name == "array" and inner else name for name in names if name]


def _variants(value: Mapping[str, object], root: Mapping[str, object], depth: int) -> list[str]:
    for key in ("anyOf", "oneOf", "allOf"):
        variants = value.get(key)
        if isinstance(variants, list):
            # No more of them than choices: variants that all point back here multiply at every level.
            names = [_type(variant, root, depth + 1) for variant in variants[:MOST_CHOICES]]
            return [name for name in names if name][: 1 if key == "allOf" else None]
    return []
