"""Decide whether a prompt fits, mostly without a tokenizer: a text never has more tokens than bytes."""

from __future__ import annotations

from collections.abc import Sequence

from rewrite.backends.base import TokenBudget
from rewrite.template import Template
from rewrite.types import Prompt, RewriteRequest

MARGIN = 32
"""Tokens that joining texts may add."""


class PromptBudget:
    """The token budget of prompts; counts tokens exactly only for prompts near the limit."""

    rejects_long_prompts = False  # a refusal by the server would take too long

    def __init__(self, exact: TokenBudget, template: Template, max_answer_tokens: int) -> None:
        """Counts the tokens of the empty template, which may take a moment."""
        empty = template.render(RewriteRequest(""))
        self._exact, self._empty_bytes = exact, _count_bytes(empty)
        self.context = exact.context
        counts = exact.count([empty]) if self.context is not None else None
        self._empty_tokens = counts[0] if counts else None
        self._max_tokens = None if self.context is None else self.context - max_answer_tokens

    def surely_fits(self, prompt: Prompt) -> bool:
        """True if no exact count is needed: the prompt fits, or the limit is unknown."""
        if self._max_tokens is None or self._empty_tokens is None:
            return True
        return self._empty_tokens + MARGIN + _count_bytes(prompt) - self._empty_bytes <= self._max_tokens

    def count(self, prompts: Sequence[Prompt]) -> list[int] | None:
        """Exact number of tokens per prompt."""
        return self._exact.count(prompts)


def _count_bytes(prompt: Prompt) -> int:
    return sum(len(message["content"].encode("utf-8", "replace")) for message in prompt)
