"""A catalogue on disk: its text, its JSON document or its JSON lines, with every failure given a place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from retrievers.catalogue.fields import as_object
from retrievers.errors import BadInput


@dataclass(frozen=True)
class Source:
    """One file or folder. What was read is kept, so that recognising the format and reading it parse once."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> Source:
        """The source at a path that exists."""
        if not str(path).strip():
            raise BadInput("the path of the catalogue is blank; give a file or folder")
        try:
            exists = Path(path).exists()
        except (OSError, ValueError) as error:  # a name too long, a NUL in it
            raise BadInput(f"{str(path)!r} is no usable path ({_reason(error)}); give a file or folder") from None
        if not exists:
            raise BadInput(f"{path} does not exist; check the path")
        return cls(Path(path))

    @property
    def is_folder(self) -> bool:
        """Whether this is a folder, which has no text of its own."""
        return self.path.is_dir()

    @cached_property
    def text(self) -> str:
        """The file's text without byte order mark."""
        if self.is_folder:
            raise BadInput(f"{self.path} is a folder; name the file in it")
        try:
            raw = self.path.read_bytes()
        except OSError as error:
            raise BadInput(f"{self.path} cannot be read ({_reason(error)}); check its permissions") from None
        try:
            return raw.decode("utf-8").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise BadInput(
                f"{self.path}, line {line}: not UTF-8 at byte offset {error.start}; save the file as UTF-8"
            ) from None

    @cached_property
    def document(self) -> object:
        """The whole file as one JSON value."""
        if not self.text.strip():
            raise BadInput(f"{self.path} is empty; give a catalogue with at least one tool")
        try:
            return _parsed(self.text)
        except ValueError as error:
            line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            raise BadInput(f"{self.path}{line}: broken JSON, {broken(error)}; fix it") from None

    @cached_property
    def is_lines(self) -> bool:
        """Whether this is JSONL: the first of several lines is an object on its own. Pretty JSON starts with a `{`."""
        lines = self._lines()
        _, first = next(lines, (0, ""))
        if not first.lstrip().startswith("{") or next(lines, None) is None:
            return False
        try:
            return isinstance(_parsed(first), dict)
        except ValueError:
            return False

    def rows(self) -> Iterator[tuple[str, dict[str, object]]]:
        """The objects of a JSONL file with their places; blank lines are passed over."""
        for number, line in self._lines():
            place = f"{self.path}, line {number}"
            try:
                value = _parsed(line)
            except ValueError as error:
                raise BadInput(f"{place}: broken JSON, {broken(error)}; fix or remove the line") from None
            yield place, as_object(value, place)

    def _lines(self) -> Iterator[tuple[int, str]]:
        # Not splitlines(): JSON strings may hold U+2028 and its kin, which end no line of a JSONL file.
        for number, line in enumerate(self.text.split("\n"), start=1):
            if line.strip():
                yield number, line


def _parsed(text: str) -> object:
    # strict=False: a raw tab or NUL inside a string is sloppy, not ambiguous.
    value: object = json.loads(text, strict=False)
    return value


def broken(error: ValueError) -> str:
    """What json.loads found wrong, without its own talk of lines."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg[:1].lower()}{error.msg[1:]} at column {error.colno}"
    return "a number has too many digits"  # the one other thing it refuses


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).lower()
