"""Cut requests and tools to the tokens that a model reads: the tool first, then the middle of the request.

A long request has needs at its beginning and at its end, while a tool is known by its first sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")
MAX_CUT = 20_000
"""Cut texts that are kept: the tools of a catalogue repeat."""


def cut_middle(items: Sequence[T], limit: int) -> list[T]:
    """At most `limit` items, half from the beginning and half from the end."""
    if len(items) <= limit:
        return list(items)
    tail = limit // 2
    return [*items[: limit - tail], *items[len(items) - tail :]]


class TextCutter:
    """Cuts texts at tokens of one tokenizer, but returns texts."""

    def __init__(self, offsets: Callable[[str], list[tuple[int, int]]], max_request: int, max_tool: int) -> None:
        """`offsets` returns begin and end of every token of a text."""
        self._offsets, self._max_request = offsets, max_request
        self.tool = lru_cache(MAX_CUT)(lambda text: self._cut_end(text, max_tool))

    def request(self, text: str) -> str:
        """The request, without its middle if it is too long."""
        if len(text) <= self._max_request:  # a token has at least one character
            return text
        ends = self._offsets(text)
        if len(ends) <= self._max_request:
            return text
        tail = self._max_request // 2
        return f"{text[: ends[self._max_request - tail - 1][1]]} {text[ends[-tail][0] :]}"

    def _cut_end(self, text: str, limit: int) -> str:
        if len(text) <= limit:
            return text
        ends = self._offsets(text)
        return text if len(ends) <= limit else text[: ends[limit - 1][1]]


def token_offsets(tokenizer: Any) -> Callable[[str], list[tuple[int, int]]]:
    """Begin and end of every token, by a tokenizer of transformers."""

    def offsets(text: str) -> list[tuple[int, int]]:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ends: list[tuple[int, int]] = encoded["offset_mapping"]
        return ends

    return offsets
