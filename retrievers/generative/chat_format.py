"""Turns of a conversation as tokens, framed as the model's chat template frames them.

What a user or a document says is tokenised by itself and never as anything special: no text can spell a tool's token,
the end of a turn, or another speaker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

SYSTEM = "Name the tool."
_MARK = re.compile(r"@@\d+@@")


@dataclass(frozen=True, slots=True)
class Turn:
    """What one of the two said: text, or tokens where these are what is meant."""

    role: Literal["user", "assistant"]
    content: str | tuple[int, ...]


class Frames:
    """Conversations of one tokenizer."""

    def __init__(self, tokenizer: Any, system: str = SYSTEM) -> None:
        self._tokenizer, self._system = tokenizer, system
        self._known: dict[tuple[tuple[str, ...], bool], list[list[int]]] = {}
        end = self._frames(("user", "assistant"), False)[-1]
        self.end: int = end[0] if end else int(tokenizer.eos_token_id)
        """The token that ends what the assistant says."""

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, whatever it looks like; half characters, which sloppy JSON holds, are replaced."""
        whole = text.encode("utf-8", "replace").decode("utf-8")
        found: list[int] = self._tokenizer.encode(whole, add_special_tokens=False, split_special_tokens=True)
        return found

    def question(self, text: str, most: int) -> list[int]:
        """Up to where the answer begins; the text is cut so that all has at most so many tokens."""
        before, after = self._frames(("user",), True)
        room = max(1, most - len(before) - len(after))
        return [*before, *self.ids(text)[:room], *after]

    def asked(self, turns: Sequence[Turn]) -> list[int]:
        """A conversation up to where the assistant speaks next."""
        return self._woven(turns, self._frames(tuple(turn.role for turn in turns), True))[0]

    def lesson(self, turns: Sequence[Turn]) -> tuple[list[int], list[bool]]:
        """A whole conversation, and which of its tokens the assistant is to learn: its words and their end."""
        return self._woven(turns, self._frames(tuple(turn.role for turn in turns), False))

    def _woven(self, turns: Sequence[Turn], frames: Sequence[Sequence[int]]) -> tuple[list[int], list[bool]]:
        tokens, learned = list(frames[0]), [False] * len(frames[0])
        for turn, frame in zip(turns, frames[1:], strict=True):
            said = self.ids(turn.content) if isinstance(turn.content, str) else list(turn.content)
            mine = turn.role == "assistant"
            ending = list(frame) or ([self.end] if mine else [])
            tokens += [*said, *ending]
            learned += [mine] * len(said) + [mine and place == 0 for place in range(len(ending))]
        return tokens, learned

    def _frames(self, roles: tuple[str, ...], answer: bool) -> list[list[int]]:
        """The tokens before, between and after what is said."""
        if (roles, answer) not in self._known:
            messages = [{"role": role, "content": f"@@{place}@@"} for place, role in enumerate(roles)]
            pieces = _MARK.split(self._rendered(messages, answer))
            encode = self._tokenizer.encode
            self._known[roles, answer] = [encode(piece, add_special_tokens=False) for piece in pieces]
        return self._known[roles, answer]

    def _rendered(self, messages: list[dict[str, str]], answer: bool) -> str:
        if not self._tokenizer.chat_template:  # a model that was never taught to chat learns this form with the tools
            said = "".join(f"{each['role']}: {each['content']}{self._tokenizer.eos_token}\n" for each in messages)
            return f"{self._system}\n{said}" + "assistant: " * answer
        from jinja2 import TemplateError

        told = [{"role": "system", "content": self._system}, *messages]
        render = self._tokenizer.apply_chat_template
        try:
            text: str = render(told, tokenize=False, add_generation_prompt=answer)
        except TemplateError:  # some models take no system message
            text = render(messages, tokenize=False, add_generation_prompt=answer)
        return text
