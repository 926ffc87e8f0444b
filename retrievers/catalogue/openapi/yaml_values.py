"""YAML as JSON values, as OpenAPI requires: YAML 1.2, keys as text.

PyYAML speaks 1.1, where the property `on` is true and 2024-01-01 a date, and its composer recurses in C until the
process dies on a file of brackets. So this builds the values from the parser's events: plain scalars are read by 1.2's
rules, nesting is counted, and an anchor is one shared value however often it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from retrievers.errors import BadInput

MAX_DEPTH = 200  # levels of nesting; real documents stay below 40

_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INTEGER = re.compile(r"[-+]?[0-9]{1,300}")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]{1,300}|[0-9]{1,300}(?:\.[0-9]{0,300})?)(?:[eE][-+]?[0-9]{1,3})?")


def yaml_document(text: str, path: Path) -> object:
    """The one document in a YAML text."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast, and not everywhere
    try:
        return _YamlBuilder(yaml.parse(text, Loader=loader), path).document()
    except BadInput:
        raise
    except yaml.MarkedYAMLError as error:
        # libyaml reports what is missing at the end on a line after the last
        line = min(error.problem_mark.line if error.problem_mark else 0, text.count("\n")) + 1
        raise BadInput(f"{path}, line {line}: invalid YAML, {error.problem or error.context}; fix it") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BadInput(f"{path}, line {line}: invalid YAML, {error.reason}; remove that character") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise BadInput(f"{path}: invalid YAML ({error}); fix it") from None  # PyYAML lets a few of these slip


class _YamlBuilder:
    """Values out of a stream of events."""

    def __init__(self, events: Iterator[yaml.Event], path: Path) -> None:
        self._events = events
        self._path = path
        self._anchors: dict[str, object] = {}

    def document(self) -> object:
        """The only document."""
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                value = self._value(next(self._events), 0)
                next(self._events)  # its end
                after = next(self._events)
                if isinstance(after, yaml.DocumentStartEvent):
                    raise self._wrong(after, "a second YAML document starts here; keep one in the file")
                return value
        return None

    def _value(self, event: yaml.Event, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise self._wrong(event, f"values nest more than {MAX_DEPTH} levels deep; flatten them")
        if isinstance(event, yaml.AliasEvent):
            # Anchors are known once they are complete, so that no value can hold itself.
            if event.anchor not in self._anchors:
                raise self._wrong(event, f"the anchor *{event.anchor} is not known here; define it further up")
            return self._anchors[event.anchor]
        if isinstance(event, yaml.ScalarEvent):
            value = _plain(event.value) if event.implicit[0] else event.value
        elif isinstance(event, yaml.SequenceStartEvent):
            value = [self._value(inner, depth + 1) for inner in self._until(yaml.SequenceEndEvent)]
        else:
            value = self._mapping(depth)
        if (anchor := getattr(event, "anchor", None)) is not None:
            self._anchors[anchor] = value
        return value

    def _mapping(self, depth: int) -> dict[str, object]:
        values: dict[str, object] = {}
        merged: dict[str, object] = {}
        for event in self._until(yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._wrong(event, "a key is no plain text; write keys as text")
            key = event.value
            value = self._value(next(self._events), depth + 1)
            if key == "<<" and event.implicit[0]:
                for part in value if isinstance(value, list) else [value]:
                    merged = {**part, **merged} if isinstance(part, dict) else merged
            else:
                values[key] = value
        return {**merged, **values}

    def _until(self, end: type[yaml.Event]) -> Iterator[yaml.Event]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _wrong(self, event: yaml.Event, what: str) -> BadInput:
        line = event.start_mark.line + 1 if event.start_mark else 1
        return BadInput(f"{self._path}, line {line}: {what}")


def _plain(text: str) -> object:
    """An unquoted scalar by the rules of YAML 1.2's core schema, less its hexadecimals."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
