"""Costs of a request, estimated before any work: searches, bytes of the answer, tokens of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any
from weakref import WeakKeyDictionary

from pipelines.serve.errors import Refusal
from pipelines.serve.formats.definitions import CHARACTERS_PER_TOKEN, definition_bytes
from retrievers.types import Tool

BYTES_PER_UNIT = 65_536
TOKENS_PER_UNIT = 1_024
FOUND_TOOL_BYTES = 200
"""Of a tool in a ranking, beside its texts."""
SAFETY = 0.8
"""Of the limit, for sizes that are said to fit: those of other tools differ."""
SAMPLE_SIZE = 64
"""Tools that the size of a tool is estimated from."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs of one request."""

    searches: int = 1
    bytes: int = 0
    tokens: int = 0

    @property
    def units(self) -> int:
        """The amount that counts against a key's `per_minute`: one per search, and more for much else."""
        return self.searches + self.bytes // BYTES_PER_UNIT + self.tokens // TOKENS_PER_UNIT


class Budget:
    """An amount per minute, which fills up again with time; 0: no limit."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._per_minute, self._left, self._seen = float(per_minute), float(per_minute), now

    def spend(self, amount: int, now: float) -> float:
        """Spend an amount, and return 0; or spend nothing, and return the seconds until there is enough. More than the
        amount of a minute takes all of it."""
        if not self._per_minute:
            return 0.0
        self._left = min(self._per_minute, self._left + (now - self._seen) * self._per_minute / 60.0)
        self._seen = now
        wanted = min(float(amount), self._per_minute)
        if self._left < wanted:
            return (wanted - self._left) * 60.0 / self._per_minute
        self._left -= wanted
        return 0.0


class AnswerSizes:
    """Mean sizes of a catalogue's tools in answers, in bytes."""

    def __init__(self) -> None:
        self._means: WeakKeyDictionary[Any, dict[str | None, float]] = WeakKeyDictionary()

    def mean(self, owner: object, tools: Mapping[str, Tool], format: str | None) -> float:
        """Bytes per tool of a ranking, with its definition if there is a format. `owner`: the catalogue's version."""
        means = self._means.setdefault(owner, {})
        if format not in means:
            sample = [tools[tool] for tool in Random(0).sample(list(tools), min(SAMPLE_SIZE, len(tools)))]
            means[format] = fmean(tool_bytes(tool, format) for tool in sample) if sample else 0.0
        return means[format]


def tool_bytes(tool: Tool, format: str | None) -> int:
    """Bytes of a tool in an answer."""
    texts = (tool.id, tool.name, tool.description, tool.provider, tool.category)
    ranked = FOUND_TOOL_BYTES + sum(len(text.encode("utf-8", "replace")) for text in texts)
    return ranked + (definition_bytes(tool, format) if format else 0)


def rewrite_tokens(utterances: Iterable[str], max_tokens: int) -> int:
    """Tokens of the rewriter for these utterances."""
    return sum(round(len(text) / CHARACTERS_PER_TOKEN) + max_tokens for text in utterances)


def check_size(utterances: int, k: int, mean: float, max_bytes: int) -> int:
    """The estimated bytes of an answer; one above the limit is refused with the sizes that fit."""
    size = round(utterances * k * mean)
    if size <= max_bytes:
        return size
    raise too_large(size, max_bytes, utterances, k)


def too_large(size: int, max_bytes: int, utterances: int, k: int) -> Refusal:
    """The refusal of an answer that is too large, with the sizes that fit."""
    fits = SAFETY * max_bytes / size
    ways = [f"k of at most {max(1, int(k * fits))}"]
    if utterances > 1:
        ways.append(f"at most {max(1, int(utterances * fits))} utterances")
    message = f"the answer would have about {size:,} bytes, and {max_bytes:,} are allowed; send {' or '.join(ways)}"
    return Refusal(422, "answer_too_large", message)
