"""Rules in place of a model: what a model has to beat, and an answer where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rewrite.backends.base import WithoutModel
from rewrite.errors import Unfit
from rewrite.rules import clauses, reduced
from rewrite.settings import RulesSettings, Sampling
from rewrite.types import Answer, Prompt


class RulesBackend(WithoutModel):
    """Answers with the last message's own clauses, reduced; NONE where there is nothing to reduce."""

    def __init__(
        self, settings: RulesSettings, model: Path | None = None, adapter: Path | None = None, device: str | None = None
    ) -> None:
        if model is not None or adapter is not None:
            raise Unfit("rules need no model; leave `base` and `path` out")

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        """The same answer every time."""
        return [[Answer(_answer(prompt[-1]["content"]), 0)] * sampling.answers for prompt in prompts]


def _answer(utterance: str) -> str:
    short = [reduced(clause) or clause for clause in clauses(utterance)] or [reduced(utterance)]
    return "\n".join(f"- {line}" for line in short if line) or "NONE"
