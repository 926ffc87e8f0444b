"""Answers in the making, by vLLM: every step asks for one more token, and allows those that spell a tool.

vLLM tells the likeliest allowed tokens with their probabilities among the allowed ones, which is what a beam needs. A
code of one token is one question a query. Longer codes are asked step by step; what was said so far is a prefix that
vLLM has in its cache.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from retrievers.errors import BadInput
from retrievers.generative.decoding.extended_models import Grown, grown
from retrievers.generative.decoding.language_model import LanguageModel
from retrievers.generative.settings import Asking
from retrievers.generative.token_schemes import Code
from retrievers.kind import Context

MEMORY = 0.5
"""The share of a GPU's memory that the engine takes: a rewriter may live there, too."""
STEP = 16
"""Tokens by which an engine's room grows: a code that is a little longer than those before starts no new one."""


def room(language: LanguageModel, codes: Sequence[Code], most: int) -> int:
    """Tokens that the longest prompt of at most `most`, the longest code and its end take, rounded up.

    Where `most` is less than a prompt's frame, the frame and a token of the query are what it has.
    """
    prompt = max(most, len(language.frames.question("x", 0)))
    longest = max(map(len, codes), default=0) + 1
    return prompt + -(-longest // STEP) * STEP


class VllmModel:
    """A model in vLLM, with rows for tools that came after its training, and with room for what is said of any tool."""

    def __init__(
        self,
        language: LanguageModel,
        inputs: np.ndarray,
        outputs: np.ndarray,
        codes: Sequence[Code],
        context: Context,
        settings: Asking,
    ) -> None:
        if context.vllm is None:
            raise BadInput("nobody here starts vLLM; take the engine transformers")
        begin = context.vllm()  # before a model is written that nobody would load
        self._grown: Grown | None = grown(language, inputs, outputs, context) if len(inputs) else None
        folder = self._grown.folder if self._grown else language.folder
        tokens = room(language, codes, settings.max_length)
        key = f"vllm:{folder}:{tokens}"
        if key not in context.encoders:
            context.encoders[key] = _Engine(
                begin(
                    folder,
                    max_model_len=tokens,
                    gpu_memory_utilization=MEMORY,
                    max_logprobs=-1,
                    logprobs_mode="processed_logprobs",
                )
            )
        self._engine: _Engine = context.encoders[key]

    def start(self, prompts: Sequence[Sequence[int]]) -> VllmRun:
        """Begins answers to these prompts."""
        return VllmRun(self._engine, prompts)


class _Engine:
    """One of the models that a context shares."""

    def __init__(self, vllm: Any) -> None:
        self.vllm = vllm
        self.lock = threading.Lock()
        """vLLM answers one caller at a time; a server has several."""

    def forget(self) -> None:
        """vLLM's own cache of prefixes changes no answer."""


class VllmRun:
    """One batch of prompts on its way."""

    def __init__(self, engine: _Engine, prompts: Sequence[Sequence[int]]) -> None:
        self._engine, self._said = engine, [list(prompt) for prompt in prompts]

    def scores(self, starts: np.ndarray, tokens: np.ndarray, most: int) -> np.ndarray:
        """As `Run.scores`; the `most` likeliest of a row are told."""
        from vllm import SamplingParams

        allowed = [tokens[start:end].tolist() for start, end in pairwise(starts)]
        found = np.full(len(tokens), -np.inf)
        open_rows = [row for row, each in enumerate(allowed) if len(each) > 1]
        for row, each in enumerate(allowed):
            if len(each) == 1:  # what can only be said costs nothing, and needs no asking
                found[starts[row]] = 0.0
        if not open_rows:
            return found
        params = [
            SamplingParams(
                max_tokens=1,
                temperature=0.0,
                logprobs=min(most, len(allowed[row])),
                allowed_token_ids=allowed[row],
                ignore_eos=True,
                detokenize=False,
            )
            for row in open_rows
        ]
        asked = [{"prompt_token_ids": self._said[row]} for row in open_rows]
        with self._engine.lock:
            answers = self._engine.vllm.generate(asked, params)
        for row, answer in zip(open_rows, answers, strict=True):
            place = {token: start for start, token in enumerate(allowed[row], int(starts[row]))}
            for token, told in answer.outputs[0].logprobs[0].items():
                if token in place:
                    found[place[token]] = told.logprob
        return found

    def advance(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """As `Run.advance`."""
        self._said = [[*self._said[row], token] for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)]
