"""Decoding by vLLM: every step requests one token, and allows only those that continue a tool's code.

vLLM returns the likeliest allowed tokens with their probabilities among the allowed ones, as beam search needs them. A
code of one token is one request per query. Longer codes are decoded step by step; vLLM caches the prefix.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from retrievers.errors import BadInput
from retrievers.generative.decoding.extended_models import ExtendedModel, open_extended_model
from retrievers.generative.decoding.language_model import LanguageModel
from retrievers.generative.settings import GenerativeSettings
from retrievers.generative.token_schemes import Code
from retrievers.kind import Context

LENGTH_STEP = 16
"""Lengths of codes are rounded up to this: a slightly longer code needs no new engine."""


def context_length(language: LanguageModel, codes: Sequence[Code], max_length: int) -> int:
    """Tokens of the longest prompt of at most `max_length`, the longest code and its end, rounded up.

    Where `max_length` is shorter than the chat template's own tokens, a prompt is those and one token of the query.
    """
    prompt = max(max_length, len(language.chat.query_prompt("x", 0)))
    longest = max(map(len, codes), default=0) + 1
    return prompt + -(-longest // LENGTH_STEP) * LENGTH_STEP


class VllmModel:
    """A model in vLLM, with token rows for tools added after its training."""

    def __init__(
        self,
        language: LanguageModel,
        inputs: np.ndarray,
        outputs: np.ndarray,
        codes: Sequence[Code],
        context: Context,
        settings: GenerativeSettings,
    ) -> None:
        if context.vllm is None:
            raise BadInput("vLLM cannot be started here; use engine: transformers")
        start_vllm = context.vllm()  # first: where vLLM is missing, no model is written
        self._extended: ExtendedModel | None = (
            open_extended_model(language, inputs, outputs, context) if len(inputs) else None
        )
        folder = self._extended.folder if self._extended else language.folder
        length = context_length(language, codes, settings.max_length)
        key = f"vllm:{folder}:{length}"
        if key not in context.encoders:
            context.encoders[key] = _SharedEngine(
                start_vllm(
                    folder,
                    max_model_len=length,
                    max_logprobs=-1,
                    logprobs_mode="processed_logprobs",
                )
            )
        self._engine: _SharedEngine = context.encoders[key]

    def start(self, prompts: Sequence[Sequence[int]]) -> VllmDecoder:
        """Start answers to these prompts."""
        return VllmDecoder(self._engine, prompts)


class _SharedEngine:
    """An engine in a context's dict of models."""

    def __init__(self, vllm: Any) -> None:
        self.vllm = vllm
        self.lock = threading.Lock()
        """vLLM answers one caller at a time; a server has several."""

    def clear_cache(self) -> None:
        """Do nothing: vLLM's cache of prefixes changes no answer."""


class VllmDecoder:
    """Decodes one batch of prompts; implements `Decoder`."""

    def __init__(self, engine: _SharedEngine, prompts: Sequence[Sequence[int]]) -> None:
        self._engine, self._prefixes = engine, [list(prompt) for prompt in prompts]

    def log_probs(self, starts: np.ndarray, tokens: np.ndarray, top: int) -> np.ndarray:
        """The values of the `top` likeliest tokens per row; -inf for the others."""
        from vllm import SamplingParams

        allowed = [tokens[start:end].tolist() for start, end in pairwise(starts)]
        log_probs = np.full(len(tokens), -np.inf)
        open_rows = [row for row, choices in enumerate(allowed) if len(choices) > 1]
        for row, choices in enumerate(allowed):
            if len(choices) == 1:  # the only possible token costs nothing
                log_probs[starts[row]] = 0.0
        if not open_rows:
            return log_probs
        params = [
            SamplingParams(
                max_tokens=1,
                temperature=0.0,
                logprobs=min(top, len(allowed[row])),
                allowed_token_ids=allowed[row],
                ignore_eos=True,
                detokenize=False,
            )
            for row in open_rows
        ]
        prompts = [{"prompt_token_ids": self._prefixes[row]} for row in open_rows]
        with self._engine.lock:
            answers = self._engine.vllm.generate(prompts, params)
        for row, answer in zip(open_rows, answers, strict=True):
            index = {token: start for start, token in enumerate(allowed[row], int(starts[row]))}
            for token, value in answer.outputs[0].logprobs[0].items():
                if token in index:
                    log_probs[index[token]] = value.logprob
        return log_probs

    def advance(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        self._prefixes = [
            [*self._prefixes[row], token] for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)
        ]
