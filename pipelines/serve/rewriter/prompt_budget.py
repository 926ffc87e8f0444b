"""Whether a prompt fits, mostly without asking: no tokenizer makes more tokens of a text than it has bytes."""

from __future__ import annotations

from collections.abc import Sequence

from rewrite.backends.base import TokenBudget
from rewrite.template import Template
from rewrite.types import Prompt, RewriteRequest

SLACK = 32
"""Tokens for what joining texts may do to their tokens."""


class QuickRoom:
    """A backend's room; its own count is asked only for prompts that come near the edge."""

    rejects_long_prompts = False  # a refusal would cost the time that there is for an answer

    def __init__(self, exact: TokenBudget, template: Template, max_tokens: int) -> None:
        """Asks how many tokens the bare template has, so it may take a moment."""
        bare = template.render(RewriteRequest(""))
        self._exact, self._bytes = exact, _bytes(bare)
        self.context = exact.context
        counted = exact.count([bare]) if self.context is not None else None
        self._tokens = counted[0] if counted else None
        self._room = None if self.context is None else self.context - max_tokens

    def surely(self, prompt: Prompt) -> bool:
        """True where there is nothing to count: it fits, or nobody knows."""
        if self._room is None or self._tokens is None:
            return True
        return self._tokens + SLACK + _bytes(prompt) - self._bytes <= self._room

    def count(self, prompts: Sequence[Prompt]) -> list[int] | None:
        """Tokens of each prompt."""
        return self._exact.count(prompts)


def _bytes(prompt: Prompt) -> int:
    return sum(len(message["content"].encode("utf-8", "replace")) for message in prompt)
