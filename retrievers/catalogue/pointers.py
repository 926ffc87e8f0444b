"""Local $refs: what `#/$defs/City` points at in the document it stands in."""

from __future__ import annotations

from urllib.parse import unquote

LONGEST_CHAIN = 8
"""A $ref to a $ref to a $ref: more of them than this is a circle."""


def pointed(root: object, reference: str) -> object:
    """The value at a local JSON pointer; None where there is none."""
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


def followed(value: object, root: object) -> object:
    """What a chain of local $refs leads to: the value itself where it is none, None where the chain breaks."""
    for _ in range(LONGEST_CHAIN):
        if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
            return value
        value = pointed(root, value["$ref"])
    return None
