"""Rows of the input: an utterance, or the reason why a row cannot be used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.batch.settings import InputSettings, Shape

TEXT_KEYS = ("text", "query", "utterance", "question")
ID_KEYS = ("_id", "id", "custom_id")
RAW_CHARACTERS = 500
"""Characters of a bad row that are kept."""

Raw = bytes | Mapping[str, Any] | Exception
"""A line, the cells of a row, or why there is none."""


@dataclass(frozen=True, slots=True)
class InputRow:
    """An utterance to rewrite."""

    number: int
    """The line or row of the input, from 1."""
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used."""

    number: int
    reason: str
    raw: str = ""
    id: str | None = None


class UnusableRow(ValueError):
    """The reason why a row cannot be used."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """Parses raw rows."""

    settings: InputSettings
    shape: Shape = "plain"
    bare: bool = False
    """Every line is an utterance."""

    def read(self, number: int, raw: Raw) -> InputRow | BadRow:
        """Parse one row; an invalid one is returned as a `BadRow`, never raised."""
        row_id: str | None = None
        try:
            facts = self._facts(raw)
            row_id = self._id(facts, number)
            return InputRow(number, row_id, self._text(facts))
        except UnusableRow as error:
            return BadRow(number, str(error), _raw_text(raw), row_id)

    def _facts(self, raw: Raw) -> Mapping[str, Any]:
        if isinstance(raw, Exception):
            raise UnusableRow(str(raw))
        if not isinstance(raw, bytes):
            return raw
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UnusableRow(f"not UTF-8 at byte {error.start}") from error
        if not line.strip():
            raise UnusableRow("empty")
        if self.bare:
            return {"text": line}
        try:
            facts = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UnusableRow(f"not JSON ({error})") from error
        if isinstance(facts, str) and self.shape == "plain":
            return {"text": facts}
        if not isinstance(facts, dict):
            raise UnusableRow("neither a JSON object nor a string")
        return facts

    def _id(self, facts: Mapping[str, Any], number: int) -> str:
        names = ("custom_id",) if self.shape == "openai" else (self.settings.id,) if self.settings.id else ID_KEYS
        value = next((facts[name] for name in names if name in facts), None)
        if value is None and (self.settings.id or self.shape == "openai"):
            raise UnusableRow(f"no {names[0]}")
        if value is None:
            return str(number)
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            raise UnusableRow("the id is neither text nor a whole number")
        return _check_utf8(str(value), "the id")

    def _text(self, facts: Mapping[str, Any]) -> str:
        if self.shape == "openai":
            text = _last_user_message(facts)
        else:
            names = (self.settings.text,) if self.settings.text else TEXT_KEYS
            key = next((name for name in names if name in facts), None)
            if key is None:
                raise UnusableRow(f"no {' or '.join(names)}")
            text = facts[key]
        if text is None or text == "":
            raise UnusableRow("empty")
        if not isinstance(text, str):
            raise UnusableRow("the utterance is not text")
        if not text.strip():
            raise UnusableRow("empty")
        if len(text) > self.settings.max_characters:
            raise UnusableRow(f"{len(text)} characters, more than {self.settings.max_characters}")
        return _check_utf8(text, "the utterance")


def _last_user_message(facts: Mapping[str, Any]) -> Any:
    """The text of the last user message in a request of OpenAI's batch API."""
    body = facts.get("body")
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list):
        raise UnusableRow("not a request of the batch API: no body with messages")
    contents = [
        message.get("content") for message in messages if isinstance(message, dict) and message.get("role") == "user"
    ]
    if not contents:
        raise UnusableRow("no message of the user's")
    if isinstance(contents[-1], list):
        parts = [part.get("text") for part in contents[-1] if isinstance(part, dict) and part.get("type") == "text"]
        return "\n".join(part for part in parts if isinstance(part, str))
    return contents[-1]


def shape_of(raw: Raw) -> Shape:
    """The shape of a first row."""
    try:
        facts = json.loads(raw) if isinstance(raw, bytes) else {}
    except (ValueError, RecursionError):
        return "plain"
    return "openai" if isinstance(facts, dict) and "custom_id" in facts and "body" in facts else "plain"


def _check_utf8(text: str, name: str) -> str:
    try:
        text.encode("utf-8")  # fails for half a surrogate pair
    except UnicodeEncodeError as error:
        raise UnusableRow(f"{name} is not UTF-8 at character {error.start}") from error
    return text


def _raw_text(raw: Raw) -> str:
    if isinstance(raw, Exception):
        return ""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else json.dumps(raw, default=str)
    return text[:RAW_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
