"""JSON Schema checks in bounded time. Schemas come from providers, and arguments from callers: a check is no attack.

Patterns share a time limit, references a number of steps, and the whole check has a limit of CPU time: a keyword that
fails repeats the value in its message, so even few keywords may take long. Keywords that the library applies with
patterns of its own, or that repeat other checks at every level, are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import regex
from jsonschema import Draft202012Validator, ValidationError, validators

PATTERN_SECONDS = 0.05
"""Seconds for all patterns of one check."""
MAX_STEPS = 20_000
"""References that one check may follow."""
MAX_NESTED = 200
"""Keywords inside each other, three calls each. Python's own limit must not be reached: the library's registry, which
is written in Rust, panics where its keys cannot be compared for it."""
MAX_COMPARED = 200
"""Items of an array that are compared with each other."""
LOOK_EVERY = 16
"""Keywords between two looks at the clock."""
_UNCHECKED = ("patternProperties", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef")
Rule = Callable[[Any, Any, Any, Any], Any]


class TooMuch(Exception):
    """The check exceeds its limits."""


class BoundedCheck:
    """Checks of one thread at a time; `errors` starts a new one."""

    def __init__(self, seconds: float, *, of_schemas: bool = False) -> None:
        """`seconds`: CPU time of a check. `of_schemas`: by the schema of schemas, all of which is references."""
        self._max_references = None if of_schemas else MAX_STEPS
        self._limit, self._end, self._patterns = seconds, 0.0, 0.0
        self._references = self._keywords = self._nested = 0
        rules = dict(Draft202012Validator.VALIDATORS)
        rules |= dict.fromkeys(_UNCHECKED[: -1 if of_schemas else None], _skip)
        rules |= {"pattern": self._pattern, "uniqueItems": _unique_items, "additionalProperties": _no_others}
        limited = {name: self._limited(name, rule) for name, rule in rules.items()}
        self.validator = validators.extend(Draft202012Validator, limited)
        self.validator.evolve = _evolve

    def start(self) -> None:
        """Begin a check."""
        self._references = self._keywords = self._nested = 0
        self._patterns, self._end = PATTERN_SECONDS, time.thread_time() + self._limit

    def _limited(self, name: str, rule: Rule) -> Rule:
        is_reference = name in ("$ref", "$dynamicRef")

        def apply(validator: Any, value: Any, instance: Any, parent: Any) -> Iterator[ValidationError]:
            self._references += is_reference
            self._keywords += 1
            is_late = self._keywords % LOOK_EVERY == 0 and time.thread_time() > self._end
            is_long = self._max_references is not None and self._references > self._max_references
            if is_late or is_long or self._nested > MAX_NESTED:
                raise TooMuch
            self._nested += 1
            try:
                yield from rule(validator, value, instance, parent) or ()
            finally:
                self._nested -= 1

        return apply

    def _pattern(self, validator: Any, value: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
        if not validator.is_type(instance, "string") or not isinstance(value, str):
            return
        began = time.monotonic()
        matched = regex.search(value, instance[:10_000], timeout=max(0.001, self._patterns))
        self._patterns -= time.monotonic() - began
        if self._patterns <= 0:
            raise TooMuch
        if matched is None:
            yield ValidationError(f"does not match {value!r}")


def _evolve(validator: Any, **changes: Any) -> Any:
    """The validator of a part of the schema: of the same class, also where the part has a `$schema` of its own."""
    fields = {field.alias: getattr(validator, field.name) for field in attrs.fields(type(validator)) if field.init}
    return type(validator)(**{**fields, **changes})


def _unique_items(validator: Any, value: Any, instance: Any, parent: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "array") and len(instance) <= MAX_COMPARED:
        yield from Draft202012Validator.VALIDATORS["uniqueItems"](validator, value, instance, parent) or ()


def _no_others(validator: Any, value: Any, instance: Any, parent: Any) -> Iterator[ValidationError]:
    if "patternProperties" not in parent:
        yield from Draft202012Validator.VALIDATORS["additionalProperties"](validator, value, instance, parent) or ()


def _skip(*_: Any) -> Iterator[ValidationError]:
    """A keyword that is not checked."""
    return iter(())
