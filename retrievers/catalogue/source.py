"""A catalogue on disk: its text, its JSON document or its JSON lines; errors name the location."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from retrievers.catalogue.fields import as_object
from retrievers.errors import BadInput

MAX_BYTES = 100 << 20
"""Bytes of a file that is read as one document; its values take about ten times as many."""


@dataclass(frozen=True)
class CatalogueSource:
    """One file or folder. Parsed content is kept, so that detecting the format and reading it parse once."""

    path: Path
    provider: str = ""
    """Provider of all tools, in place of the one that the file names."""
    report: Callable[[str], None] | None = None
    """Takes a sentence about an entry that is skipped; None: a wrong entry is an error."""
    folder: Path | None = None
    """Folder that the $refs of the file may not leave; None: its own."""
    included: set[Path] = field(default_factory=set)
    """Other files that were read for this one."""

    @classmethod
    def at(
        cls,
        path: Path,
        provider: str = "",
        report: Callable[[str], None] | None = None,
        folder: Path | None = None,
    ) -> CatalogueSource:
        """The source at a path that exists."""
        if not str(path).strip():
            raise BadInput("the path of the catalogue is blank; give a file or folder")
        try:
            exists = Path(path).exists()
        except (OSError, ValueError) as error:  # a name too long, a NUL in it
            raise BadInput(f"{str(path)!r} is no usable path ({_reason(error)}); give a file or folder") from None
        if not exists:
            raise BadInput(f"{path} does not exist; check the path")
        return cls(Path(path), provider, report, folder)

    @property
    def root(self) -> Path:
        """Folder that the $refs of the file may not leave."""
        return self.folder if self.folder is not None else self.path.parent

    def skip(self, error: BadInput) -> None:
        """Report a wrong entry and go on; without `report` the error ends the reading."""
        if self.report is None:
            raise error
        self.report(str(error))

    @property
    def is_folder(self) -> bool:
        """True for a folder, which has no text."""
        return self.path.is_dir()

    @cached_property
    def text(self) -> str:
        """The file's text without byte order mark."""
        if self.is_folder:
            raise BadInput(f"{self.path} is a folder; name the file in it")
        try:
            size = self.path.stat().st_size
            if size > MAX_BYTES and self.path.suffix != ".jsonl":
                raise BadInput(
                    f"{self.path} has {size >> 20} MB, a catalogue file at most {MAX_BYTES >> 20}; split it, or give "
                    "the tools as lines of JSON in a .jsonl file"
                )
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
            return _parse(self.text)
        except ValueError as error:
            line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            raise BadInput(f"{self.path}{line}: broken JSON, {json_problem(error)}; fix it") from None

    @cached_property
    def is_lines(self) -> bool:
        """True for JSONL: the first of several lines is a whole object. Pretty JSON starts with a line `{`."""
        lines = self._lines()
        _, first = next(lines, (0, ""))
        if not first.lstrip().startswith("{") or next(lines, None) is None:
            return False
        try:
            return isinstance(_parse(first), dict)
        except ValueError:
            return False

    def rows(self) -> Iterator[tuple[str, dict[str, object]]]:
        """The objects of a JSONL file with their locations; blank and wrong lines are skipped."""
        for number, line in self._lines():
            location = f"{self.path}, line {number}"
            try:
                value = as_object(_parse(line), location)
            except BadInput as error:
                self.skip(error)
            except ValueError as error:
                self.skip(BadInput(f"{location}: broken JSON, {json_problem(error)}; fix or remove the line"))
            else:
                yield location, value

    def entries(self) -> Iterator[tuple[str, dict[str, object]]]:
        """The objects of a JSONL file or a JSON list, or the one object of the file, with their locations."""
        if self.is_lines:
            yield from self.rows()
        elif isinstance(self.document, list):
            for number, value in enumerate(self.document, 1):
                location = f"{self.path}, entry {number}"
                try:
                    entry = as_object(value, location)
                except BadInput as error:
                    self.skip(error)
                else:
                    yield location, entry
        else:
            yield str(self.path), as_object(self.document, str(self.path))

    def _lines(self) -> Iterator[tuple[int, str]]:
        # Not splitlines(): JSON strings may hold U+2028 and its kin, which end no line of a JSONL file.
        for number, line in enumerate(self.text.split("\n"), start=1):
            if line.strip():
                yield number, line


def _parse(text: str) -> object:
    # strict=False: a raw tab or NUL inside a string is sloppy, not ambiguous.
    value: object = json.loads(text, strict=False)
    return value


def json_problem(error: ValueError) -> str:
    """The complaint of json.loads, without its line number."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg[:1].lower()}{error.msg[1:]} at column {error.colno}"
    return "a number has too many digits"  # the one other thing it refuses


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).lower()
