"""Checked access to the fields of an entry: the right type, tidy text, or a `BadInput` that names the location."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from retrievers.errors import BadInput

_Value = TypeVar("_Value", dict[str, object], list[object], str)
_EXAMPLES = {"an object": "{…}", "a list": "[…]", "text": '"…"'}


def tidy(text: str) -> str:
    """Text without lone surrogates, NUL and surrounding white space."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", " ").strip()


def as_object(value: object, location: str) -> dict[str, object]:
    """The value, which has to be an object."""
    if not isinstance(value, dict):
        raise BadInput(f"{location}: expected an object, found {kind(value)}; write it as {{…}}")
    return value


def _value_at(entry: Mapping[str, object], key: str, location: str, empty: _Value) -> _Value:
    value = entry.get(key)
    if value is None:
        return empty
    if not isinstance(value, type(empty)):
        wanted = kind(empty)
        raise BadInput(f"{location}: {key!r} has to be {wanted}, found {kind(value)}; write it as {_EXAMPLES[wanted]}")
    return value


def object_at(entry: Mapping[str, object], key: str, location: str) -> dict[str, object]:
    """The object under a key; an empty one where it is absent or null."""
    empty: dict[str, object] = {}
    return _value_at(entry, key, location, empty)


def list_at(entry: Mapping[str, object], key: str, location: str) -> list[object]:
    """The list under a key; an empty one where it is absent or null."""
    empty: list[object] = []
    return _value_at(entry, key, location, empty)


def text_at(entry: Mapping[str, object], key: str, location: str) -> str:
    """The tidy text under a key; "" where it is absent or null."""
    return tidy(_value_at(entry, key, location, ""))


def name_at(entry: Mapping[str, object], key: str, location: str) -> str:
    """The tidy text under a key that may not be absent or blank."""
    value = text_at(entry, key, location)
    if not value:
        raise BadInput(f"{location}: {key!r} is missing or blank; give every entry one")
    return value


def text_or_nothing(entry: Mapping[str, object], key: str) -> str:
    """The tidy text under a key; "" for anything else, where other types are allowed."""
    value = entry.get(key)
    return tidy(value) if isinstance(value, str) else ""


def kind(value: object) -> str:
    """A JSON value's type in words."""
    if isinstance(value, bool):
        return "true" if value else "false"
    names = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number"}
    return names.get(type(value), "null")
