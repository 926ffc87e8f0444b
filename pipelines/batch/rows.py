"""A row of the input: what was read of it, or why it cannot be used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipelines.batch.settings import InputSettings

TEXTS = ("text", "query", "utterance", "question")
IDS = ("_id", "id", "custom_id")
SHOWN = 500
"""Characters of a bad row that are kept."""

Raw = bytes | Mapping[str, Any] | Exception
"""A line, the cells of a row, or why there is none."""
Shape = Literal["plain", "openai"]


@dataclass(frozen=True, slots=True)
class Row:
    """An utterance to rewrite."""

    number: int
    """The line or row of the input, from 1."""
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Bad:
    """A row that cannot be used."""

    number: int
    reason: str
    raw: str = ""
    id: str | None = None


class Unusable(ValueError):
    """Why a row cannot be used."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """Turns what a source gives into rows."""

    settings: InputSettings
    shape: Shape = "plain"
    bare: bool = False
    """Every line is an utterance."""

    def read(self, number: int, raw: Raw) -> Row | Bad:
        """One row. Whatever is wrong with it is told, never raised."""
        known: str | None = None
        try:
            facts = self._facts(raw)
            known = self._id(facts, number)
            return Row(number, known, self._text(facts))
        except Unusable as error:
            return Bad(number, str(error), _shown(raw), known)

    def _facts(self, raw: Raw) -> Mapping[str, Any]:
        if isinstance(raw, Exception):
            raise Unusable(str(raw))
        if not isinstance(raw, bytes):
            return raw
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Unusable(f"not UTF-8 at byte {error.start}") from error
        if not line.strip():
            raise Unusable("empty")
        if self.bare:
            return {"text": line}
        try:
            facts = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Unusable(f"not JSON ({error})") from error
        if isinstance(facts, str) and self.shape == "plain":
            return {"text": facts}
        if not isinstance(facts, dict):
            raise Unusable("neither a JSON object nor a string")
        return facts

    def _id(self, facts: Mapping[str, Any], number: int) -> str:
        names = ("custom_id",) if self.shape == "openai" else (self.settings.id,) if self.settings.id else IDS
        value = next((facts[name] for name in names if name in facts), None)
        if value is None and (self.settings.id or self.shape == "openai"):
            raise Unusable(f"no {names[0]}")
        if value is None:
            return str(number)
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            raise Unusable("the id is neither text nor a whole number")
        return _sound(str(value), "the id")

    def _text(self, facts: Mapping[str, Any]) -> str:
        if self.shape == "openai":
            text = _asked(facts)
        else:
            names = (self.settings.text,) if self.settings.text else TEXTS
            found = next((name for name in names if name in facts), None)
            if found is None:
                raise Unusable(f"no {' or '.join(names)}")
            text = facts[found]
        if text is None or text == "":
            raise Unusable("empty")
        if not isinstance(text, str):
            raise Unusable("the utterance is not text")
        if not text.strip():
            raise Unusable("empty")
        if len(text) > self.settings.max_characters:
            raise Unusable(f"{len(text)} characters, more than {self.settings.max_characters}")
        return _sound(text, "the utterance")


def _asked(facts: Mapping[str, Any]) -> Any:
    """What the user says in a request of OpenAI's batch API: the text of the last message that is the user's."""
    body = facts.get("body")
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list):
        raise Unusable("not a request of the batch API: no body with messages")
    said = [each.get("content") for each in messages if isinstance(each, dict) and each.get("role") == "user"]
    if not said:
        raise Unusable("no message of the user's")
    if isinstance(said[-1], list):
        parts = [part.get("text") for part in said[-1] if isinstance(part, dict) and part.get("type") == "text"]
        return "\n".join(part for part in parts if isinstance(part, str))
    return said[-1]


def shape_of(raw: Raw) -> Shape:
    """What a first row looks like."""
    try:
        facts = json.loads(raw) if isinstance(raw, bytes) else {}
    except (ValueError, RecursionError):
        return "plain"
    return "openai" if isinstance(facts, dict) and "custom_id" in facts and "body" in facts else "plain"


def _sound(text: str, name: str) -> str:
    """Text that can be written as UTF-8: half a surrogate pair cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Unusable(f"{name} is not UTF-8 at character {error.start}") from error
    return text


def _shown(raw: Raw) -> str:
    if isinstance(raw, Exception):
        return ""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else json.dumps(raw, default=str)
    return text[:SHOWN].encode("utf-8", "replace").decode("utf-8")
