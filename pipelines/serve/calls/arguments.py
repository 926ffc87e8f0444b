"""Check the arguments of a call against the tool's schema, in bounded time.

References stay inside the schema. What cannot be checked within the limits is left to the tool's own server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import regex
from jsonschema import ValidationError
from jsonschema.exceptions import UnknownType, best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from pipelines.serve.calls.outcomes import CallFailure
from pipelines.serve.formats.argument_schemas import Schema, arguments_of
from pipelines.serve.formats.bounded_checks import BoundedCheck, TooMuch
from retrievers.types import Tool

CHECK_SECONDS = 0.2
"""CPU seconds of one check."""
LARGE = 10_000
"""Characters from which on a schema is read in a thread."""
NESTING = 64
"""Levels around the arguments in the message that they are sent in, and as many calls around the one that writes it."""
MAX_SHOWN = 12
"""Names or values in a message."""
_BAD_SCHEMA = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, UnknownType)
"""What the library raises for schemas that it cannot apply."""
_TYPES = {"object": "an object", "array": "a list", "integer": "an integer", "null": "null"}


class ArgumentChecker:
    """Checks against one schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema, self._check = schema, BoundedCheck(CHECK_SECONDS)
        self._validator = self._check.validator(schema, registry=Registry())

    def complaint(self, arguments: Mapping[str, Any]) -> str | None:
        """A sentence about the first mistake; None: the arguments fit, or cannot be checked."""
        self._check.start()
        try:
            error = best_match(self._validator.iter_errors(arguments))
        except (TooMuch, RecursionError, Unresolvable, TimeoutError, regex.error, *_BAD_SCHEMA):
            return None
        return None if error is None else _sentence(error, self._schema)


async def load_schema(tool: Tool) -> None:
    """Read a large schema in a thread, as that may take seconds; it is cached then."""
    if len(tool.schema) > LARGE:
        await asyncio.to_thread(arguments_of, tool)


def check_arguments(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that do not fit the tool's schema, or that JSON cannot express."""
    complaint = _not_json(arguments) or _checker(tool).complaint(arguments)
    if complaint is not None:
        raise CallFailure("arguments", complaint)


def _not_json(arguments: Mapping[str, Any]) -> str:
    """A sentence about what no server could read; empty: nothing. Python reads more than JSON allows."""
    wrapped: Any = arguments
    for _ in range(NESTING):
        wrapped = [wrapped]
    try:
        json.dumps(wrapped, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        return "the arguments are nested too deeply"
    except UnicodeEncodeError:
        return "the arguments contain half a surrogate pair, which is no text"
    except ValueError:
        return "numbers must be finite; NaN and Infinity are no JSON"
    return ""


@lru_cache(maxsize=2048)
def _checker(tool: Tool) -> ArgumentChecker:
    return ArgumentChecker(arguments_of(tool))


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
