"""One field of one entry, checked: the right type, no surrounding white space, or a `BadInput` that names the place."""

from __future__ import annotations

from collections.abc import Mapping

from retrievers.errors import BadInput


def tidy(text: str) -> str:
    """Text that can be written anywhere: no lone surrogates, no NUL, no white space around it."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", " ").strip()


def as_object(value: object, place: str) -> dict[str, object]:
    """The value, which has to be an object."""
    if not isinstance(value, dict):
        raise BadInput(f"{place}: expected an object, found {kind(value)}; write it as {{…}}")
    return value


def object_at(entry: Mapping[str, object], key: str, place: str) -> dict[str, object]:
    """The object under a key; an empty one where it is absent or null."""
    value = entry.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadInput(f"{place}: {key!r} has to be an object, found {kind(value)}; write it as {{…}}")
    return value


def list_at(entry: Mapping[str, object], key: str, place: str) -> list[object]:
    """The list under a key; an empty one where it is absent or null."""
    value = entry.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadInput(f"{place}: {key!r} has to be a list, found {kind(value)}; write it as […]")
    return value


def text_at(entry: Mapping[str, object], key: str, place: str) -> str:
    """The tidy text under a key; "" where it is absent or null."""
    value = entry.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadInput(f'{place}: {key!r} has to be text, found {kind(value)}; write it as "…"')
    return tidy(value)


def name_at(entry: Mapping[str, object], key: str, place: str) -> str:
    """The tidy text under a key that may not be absent or blank."""
    value = text_at(entry, key, place)
    if not value:
        raise BadInput(f"{place}: {key!r} is missing or blank; give every entry one")
    return value


def text_or_nothing(entry: Mapping[str, object], key: str) -> str:
    """The tidy text under a key; "" for anything else. For places where other types are nobody's mistake."""
    value = entry.get(key)
    return tidy(value) if isinstance(value, str) else ""


def kind(value: object) -> str:
    """A JSON value's type in words."""
    if isinstance(value, bool):
        return "true" if value else "false"
    names = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number"}
    return names.get(type(value), "null")
