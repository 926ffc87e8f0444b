"""Rules in place of a model: the baseline for every model, and the answer where there is none."""

from __future__ import annotations

from collections.abc import Sequence

from rewrite.backends.base import ModelFreeBackend
from rewrite.rules import reduce_text, split_clauses
from rewrite.settings import Sampling
from rewrite.types import Answer, Prompt


class RulesBackend(ModelFreeBackend):
    """Answers with the last message's own clauses, reduced; NONE where nothing can be reduced."""

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        """The same answer every time."""
        return [[Answer(_answer(prompt[-1]["content"]), 0)] * sampling.answers for prompt in prompts]


def _answer(utterance: str) -> str:
    short = [reduce_text(clause) or clause for clause in split_clauses(utterance)] or [reduce_text(utterance)]
    return "\n".join(f"- {line}" for line in short if line) or "NONE"
