"""What a model says freely, between the tools: greedy, batched, and never a tool's token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retrievers.generative.decoding.local_model import LocalRun, Vocabulary
from retrievers.generative.token_schemes import Code

AT_ONCE = 32
"""Conversations that are gone on with together; on a GPU four times as many."""


@dataclass(frozen=True, slots=True)
class Speech:
    """All that an agent needs to speak of the tools of an opened index."""

    vocabulary: Vocabulary
    words: int
    """Tokens that the model came with: what it may say freely."""
    codes: Mapping[int, Code]
    """Row -> the tool's code."""

    def say(self, prompts: Sequence[Sequence[int]], most: int) -> list[str]:
        """The text of an answer to each prompt."""
        language = self.vocabulary.language
        found: list[str] = []
        step = AT_ONCE * 4 if language.device.startswith("cuda") else AT_ONCE
        for start in range(0, len(prompts), step):
            some = prompts[start : start + step]
            tokens = speak(self.vocabulary, some, most, language.frames.end, self.words)
            found.extend(language.tokenizer.decode(each, skip_special_tokens=True) for each in tokens)
        return found


def speak(vocabulary: Vocabulary, prompts: Sequence[Sequence[int]], most: int, end: int, words: int) -> list[list[int]]:
    """For each prompt the tokens of an answer, up to `end` or at most so many; only the first `words` tokens are used.

    Prompts of all lengths go in one batch; rows that have ended are let go.
    """
    said: list[list[int]] = [[] for _ in prompts]
    if not prompts:
        return said
    run, alive = LocalRun(vocabulary, prompts, True), np.arange(len(prompts))
    for _ in range(most):
        tokens = run.likeliest(words)
        going = np.flatnonzero(tokens != end)
        for row in going.tolist():
            said[int(alive[row])].append(int(tokens[row]))
        alive = alive[going]
        if not len(alive):
            break
        run.advance(going, tokens[going])
    return said
