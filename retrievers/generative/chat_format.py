"""Conversations as tokens, in the format of the model's chat template.

The text of a user or a document is tokenized by itself and never as anything special: no text can produce a tool's
token, the end of a turn, or another speaker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

SYSTEM = "Name the tool."
_MARK = re.compile(r"@@\d+@@")


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One turn of a conversation: text, or the tokens themselves."""

    role: Literal["user", "assistant"]
    content: str | tuple[int, ...]


class ChatFormat:
    """Conversations of one tokenizer."""

    def __init__(self, tokenizer: Any, system: str = SYSTEM) -> None:
        self._tokenizer, self._system = tokenizer, system
        self._cache: dict[tuple[tuple[str, ...], bool], list[list[int]]] = {}
        end = self._frame(("user", "assistant"), False)[-1]
        self.end: int = end[0] if end else int(tokenizer.eos_token_id)
        """The token that ends the assistant's turn."""

    def tokenize(self, text: str) -> list[int]:
        """The tokens of any text; lone surrogates, which careless JSON contains, are replaced."""
        valid = text.encode("utf-8", "replace").decode("utf-8")
        tokens: list[int] = self._tokenizer.encode(valid, add_special_tokens=False, split_special_tokens=True)
        return tokens

    def query_prompt(self, text: str, max_length: int) -> list[int]:
        """The prompt up to where the answer begins; the text is cut so that the prompt has at most `max_length`."""
        before, after = self._frame(("user",), True)
        room = max(1, max_length - len(before) - len(after))
        return [*before, *self.tokenize(text)[:room], *after]

    def prompt(self, turns: Sequence[ChatTurn]) -> list[int]:
        """A conversation up to where the assistant speaks next."""
        return self._fill(turns, self._frame(tuple(turn.role for turn in turns), True))[0]

    def example(self, turns: Sequence[ChatTurn]) -> tuple[list[int], list[bool]]:
        """A whole conversation, and which tokens are learned: the assistant's and the end of its turns."""
        return self._fill(turns, self._frame(tuple(turn.role for turn in turns), False))

    def _fill(self, turns: Sequence[ChatTurn], frame: Sequence[Sequence[int]]) -> tuple[list[int], list[bool]]:
        tokens, learned = list(frame[0]), [False] * len(frame[0])
        for turn, piece in zip(turns, frame[1:], strict=True):
            content = self.tokenize(turn.content) if isinstance(turn.content, str) else list(turn.content)
            is_answer = turn.role == "assistant"
            ending = list(piece) or ([self.end] if is_answer else [])
            tokens += [*content, *ending]
            learned += [is_answer] * len(content) + [is_answer and index == 0 for index in range(len(ending))]
        return tokens, learned

    def _frame(self, roles: tuple[str, ...], answer: bool) -> list[list[int]]:
        """The template's tokens before, between and after the turns."""
        if (roles, answer) not in self._cache:
            messages = [{"role": role, "content": f"@@{index}@@"} for index, role in enumerate(roles)]
            pieces = _MARK.split(self._render(messages, answer))
            encode = self._tokenizer.encode
            self._cache[roles, answer] = [encode(piece, add_special_tokens=False) for piece in pieces]
        return self._cache[roles, answer]

    def _render(self, messages: list[dict[str, str]], answer: bool) -> str:
        if not self._tokenizer.chat_template:  # a base model learns this form together with the tools
            lines = "".join(f"{turn['role']}: {turn['content']}{self._tokenizer.eos_token}\n" for turn in messages)
            return f"{self._system}\n{lines}" + "assistant: " * answer
        from jinja2 import TemplateError

        render = self._tokenizer.apply_chat_template
        try:
            with_system = [{"role": "system", "content": self._system}, *messages]
            text: str = render(with_system, tokenize=False, add_generation_prompt=answer)
        except TemplateError:  # some models take no system message
            text = render(messages, tokenize=False, add_generation_prompt=answer)
        return text
