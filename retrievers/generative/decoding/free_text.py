"""Free text of an agent between the tools: greedy, batched, and never a tool's token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retrievers.generative.decoding.local_model import ExtendedVocabulary, LocalDecoder
from retrievers.generative.token_schemes import Code

BATCH_SIZE = 32
"""Conversations continued together; on a GPU four times as many."""


@dataclass(frozen=True, slots=True)
class TextGenerator:
    """Generates an agent's free text about the tools of an opened index."""

    vocabulary: ExtendedVocabulary
    base_tokens: int
    """Tokens of the model before training: the ones that free text consists of."""
    codes: Mapping[int, Code]
    """The tool's code by row."""

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[str]:
        """The text of an answer to each prompt."""
        language = self.vocabulary.language
        texts: list[str] = []
        step = BATCH_SIZE * 4 if language.device.startswith("cuda") else BATCH_SIZE
        for start in range(0, len(prompts), step):
            batch = prompts[start : start + step]
            answers = greedy_answers(self.vocabulary, batch, max_tokens, language.chat.end, self.base_tokens)
            texts.extend(language.tokenizer.decode(answer, skip_special_tokens=True) for answer in answers)
        return texts


def greedy_answers(
    vocabulary: ExtendedVocabulary, prompts: Sequence[Sequence[int]], max_tokens: int, end: int, base_tokens: int
) -> list[list[int]]:
    """The tokens of each prompt's answer, up to `end` or `max_tokens`; only the first `base_tokens` are used.

    Prompts of all lengths go into one batch; finished rows are dropped from it.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    if not prompts:
        return answers
    decoder, active = LocalDecoder(vocabulary, prompts, True), np.arange(len(prompts))
    for _ in range(max_tokens):
        tokens = decoder.likeliest(base_tokens)
        going = np.flatnonzero(tokens != end)
        for row in going.tolist():
            answers[int(active[row])].append(int(tokens[row]))
        active = active[going]
        if not len(active):
            break
        decoder.advance(going, tokens[going])
    return answers
