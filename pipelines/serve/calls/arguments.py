"""Check the arguments of a call against the tool's schema, in bounded time.

Schemas come from providers, so a check must not be an attack: references stay inside the schema, patterns have a time
limit, and the number of steps is limited. What cannot be checked within the limits is left to the tool's own server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import regex
from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.exceptions import UnknownType, best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from pipelines.serve.calls.outcomes import CallFailure
from pipelines.serve.formats.argument_schemas import Schema, arguments_of
from retrievers.types import Tool

PATTERN_SECONDS = 0.05
"""Seconds for all patterns of one check."""
MAX_STEPS = 20_000
"""References that one check may follow."""
MAX_COMPARED = 200
"""Items of an array that are compared with each other."""
MAX_SHOWN = 12
"""Names or values in a message."""
_BAD_SCHEMA = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, UnknownType)
"""What the library raises for schemas that it cannot apply."""
_TYPES = {"object": "an object", "array": "a list", "integer": "an integer", "null": "null"}


class _TooMuch(Exception):
    """The check exceeds its limits."""


class ArgumentChecker:
    """Checks against one schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema, self._steps, self._seconds = schema, 0, PATTERN_SECONDS
        follow = Draft202012Validator.VALIDATORS["$ref"]

        def reference(validator: Any, value: Any, instance: Any, parent: Any) -> Iterator[ValidationError]:
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise _TooMuch
            yield from follow(validator, value, instance, parent) or ()

        rules = {"$ref": reference, "pattern": self._pattern, "patternProperties": _skip, "uniqueItems": _unique_items}
        made = validators.extend(Draft202012Validator, {**rules, "$dynamicRef": _skip})
        self._validator = made(schema, registry=Registry())

    def complaint(self, arguments: Mapping[str, Any]) -> str | None:
        """A sentence about the first mistake; None: the arguments fit, or cannot be checked."""
        self._steps, self._seconds = 0, PATTERN_SECONDS
        try:
            error = best_match(self._validator.iter_errors(arguments))
        except (_TooMuch, RecursionError, Unresolvable, TimeoutError, regex.error, *_BAD_SCHEMA):
            return None
        return None if error is None else _sentence(error, self._schema)

    def _pattern(self, validator: Any, value: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
        if not validator.is_type(instance, "string") or not isinstance(value, str):
            return
        began = time.monotonic()
        matched = regex.search(value, instance[:10_000], timeout=max(0.001, self._seconds))
        self._seconds -= time.monotonic() - began
        if self._seconds <= 0:
            raise _TooMuch
        if matched is None:
            yield ValidationError(f"does not match {value!r}")


def check_arguments(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that do not fit the tool's schema."""
    complaint = _checker(tool).complaint(arguments)
    if complaint is not None:
        raise CallFailure("arguments", complaint)


@lru_cache(maxsize=2048)
def _checker(tool: Tool) -> ArgumentChecker:
    return ArgumentChecker(arguments_of(tool))


def _unique_items(validator: Any, value: Any, instance: Any, parent: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "array") and len(instance) <= MAX_COMPARED:
        yield from Draft202012Validator.VALIDATORS["uniqueItems"](validator, value, instance, parent) or ()


def _skip(*_: Any) -> Iterator[ValidationError]:
    """A keyword that is not checked."""
    return iter(())


def _sentence(error: ValidationError, schema: Schema) -> str:
    """One sentence that names the argument and what it must be; it repeats no value of the caller."""
    name = ".".join(str(step) for step in error.absolute_path)[:100]
    subject = f"argument {name!r}" if name else "the arguments"
    value = error.validator_value
    match error.validator:
        case "required" if isinstance(value, list) and isinstance(error.instance, dict):
            missing = [str(key) for key in value if key not in error.instance]
            inside = f" in {name!r}" if name else ""
            return f"missing{inside}: {_names(missing)}; call get_tool for the schema"
        case "additionalProperties":
            extra = [str(key)[:60] for key in error.instance if key not in error.schema.get("properties", {})]
            return f"{subject} may not have {_names(extra)}; allowed: {_names(error.schema.get('properties', {}))}"
        case "type":
            wanted = [_TYPES.get(one, f"a {one}") for one in (value if isinstance(value, list) else [value])]
            return f"{subject} must be {' or '.join(wanted)}, not {_kind(error.instance)}"
        case "enum" if isinstance(value, list):
            return f"{subject} must be one of {_names(value)}"
        case "const":
            return f"{subject} must be {str(value)[:100]!r}"
        case "pattern" | "format":
            return f"{subject} must match the {error.validator} {str(value)[:200]!r}"
        case "anyOf" | "oneOf":
            return f"{subject} fits none of the allowed forms; call get_tool for the schema"
    return f"{subject} must satisfy {error.validator} {str(value)[:100]}"


def _names(values: Any) -> str:
    names = [str(value)[:60] for value in values]
    return ", ".join(names[:MAX_SHOWN]) + (", …" if len(names) > MAX_SHOWN else "") if names else "none"


def _kind(value: Any) -> str:
    kinds: dict[type, str] = {bool: "a boolean", str: "a string", list: "a list", dict: "an object", type(None): "null"}
    return kinds.get(type(value), "a number")
