"""Answers in the making, by vLLM: every step asks for one more token, and allows those that spell a tool.

vLLM tells the likeliest allowed tokens with their probabilities among the allowed ones, which is what a beam needs. A
code of one token is one question a query. Longer codes are asked step by step; what was said so far is a prefix that
vLLM has in its cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from retrievers.errors import BadInput
from retrievers.generative.language_model import LanguageModel, load_model
from retrievers.generative.settings import Asking
from retrievers.generative.weights import grow
from retrievers.index.files import disk_room
from retrievers.kinds import Context

MEMORY = 0.5
"""The share of a GPU's memory that the engine takes: a rewriter may live there, too."""
ROOM = 64
"""Tokens beside a query's own: its frame, and a code."""


class VllmModel:
    """A model in vLLM, with rows for tools that came after its training."""

    def __init__(
        self, language: LanguageModel, inputs: np.ndarray, outputs: np.ndarray, context: Context, settings: Asking
    ) -> None:
        if context.vllm is None:
            raise BadInput("nobody here starts vLLM; take the engine transformers")
        begin = context.vllm()  # before a model is written that nobody would load
        folder = grown(language, inputs, outputs, context) if len(inputs) else language.folder
        key = f"vllm:{folder}"
        if key not in context.encoders:
            context.encoders[key] = _Engine(
                begin(
                    folder,
                    max_model_len=settings.max_length + ROOM,
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


def grown(language: LanguageModel, inputs: np.ndarray, outputs: np.ndarray, context: Context) -> Path:
    """A model folder whose vocabulary holds these rows as well, made once and kept in the cache."""
    digest = hashlib.sha256(language.fingerprint.encode())
    digest.update(inputs.tobytes())
    digest.update(outputs.tobytes())
    shelf = (context.cache or Path(tempfile.gettempdir())) / "generative"
    target = shelf / digest.hexdigest()[:16]
    if target.exists():
        return target
    with disk_room(shelf):
        shelf.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=shelf))
        try:
            model = load_model(language.folder)
            grow(model, inputs, outputs)
            model.save_pretrained(part)
            language.tokenizer.save_pretrained(part)
            if not target.exists():
                os.rename(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target
