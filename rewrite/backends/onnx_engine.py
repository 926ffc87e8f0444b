"""The model in this process, quantised, run by ONNX Runtime GenAI: for machines without a GPU.

One answer at a time: a small batch costs a CPU as much as its prompts one by one. The start that a prompt shares with
the one before, instructions and examples, is not computed again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from rewrite.backends.model_folder import check_fit, encode, in_short, load_tokenizer
from rewrite.errors import BackendDown, RewriteError
from rewrite.settings import OnnxSettings, Sampling
from rewrite.types import Answer, Prompt

ROOM = 512
"""Tokens by which the key-value cache grows."""
Complete = Callable[[str], bool]
"""True where the rest of an answer that begins like this would not be read."""


class OnnxBackend:
    """Answers with the model of a converted folder."""

    rejects_long_prompts = False

    def __init__(
        self,
        settings: OnnxSettings,
        model: Path,
        adapter: Path | None = None,
        device: str | None = None,
        is_complete: Complete | None = None,
    ) -> None:
        if adapter is not None or not (model / "genai_config.json").is_file():
            raise RewriteError(f"{model} is not converted for ONNX Runtime GenAI; take the transformers backend")
        self._tokenizer = load_tokenizer(model, config_file="genai_config.json")
        try:
            import onnxruntime_genai

            self._library: Any = onnxruntime_genai
            facts = json.loads((model / "genai_config.json").read_text(encoding="utf-8"))["model"]
            self._model = self._load(model)
        except (ImportError, RuntimeError, ValueError, KeyError) as error:
            raise RewriteError(f"ONNX Runtime GenAI cannot load {model}: {in_short(error)}") from error
        ends = facts["eos_token_id"]
        self._ends = {*(ends if isinstance(ends, list) else [ends]), self._tokenizer.eos_token_id}
        self._context, self._is_complete = int(facts["context_length"]), is_complete
        self._generator: Any = None
        self._room, self._seen = 0, list[int]()
        self._lock = Lock()

    def _load(self, folder: Path) -> Any:
        config = self._library.Config(str(folder))
        config.clear_providers()
        # Threads that wait by spinning would take the cores that searches need.
        session = {"intra_op_num_threads": num_threads(), "session.intra_op.allow_spinning": "0"}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        return self._library.Model(config)

    @property
    def context(self) -> int | None:
        """Tokens of prompt and answer together."""
        return self._context

    def count(self, prompts: Sequence[Prompt]) -> list[int]:
        return [len(tokens) for tokens in encode(self._tokenizer, prompts)]

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        """Answers in the prompts' order. Each is sampled from the seed, independently of the others."""
        encoded = encode(self._tokenizer, prompts)
        check_fit(encoded, sampling.max_tokens, self.context)
        with self._lock:
            return [
                [self._answer(tokens, sampling, number) for number in range(sampling.answers)]
                for tokens in (tqdm(encoded, unit="prompt", desc="answering") if show_progress else encoded)
            ]

    def _answer(self, prompt: Sequence[int], sampling: Sampling, number: int) -> Answer:
        random = np.random.default_rng([sampling.seed, number])
        try:
            self._read(prompt, len(prompt) + sampling.max_tokens)
            added: list[int] = []
            while len(added) < sampling.max_tokens:
                token = choose_token(np.asarray(self._generator.get_logits())[0, -1], sampling, random)
                added.append(token)
                if token in self._ends or self._rest_is_unread(added):
                    return Answer(self._decode(added), len(added), True)
                if len(added) < sampling.max_tokens:
                    self._append([token])
        except RuntimeError as error:
            self._generator = None
            raise BackendDown(f"ONNX Runtime GenAI failed: {in_short(error)}; try the transformers backend") from error
        return Answer(self._decode(added), len(added), False)

    def _read(self, prompt: Sequence[int], num_tokens: int) -> None:
        """Lets the model read a prompt, from where it differs from the tokens that it has seen."""
        if self._generator is None or num_tokens > self._room:
            self._room = min(self._context, -(-num_tokens // ROOM) * ROOM)
            params = self._library.GeneratorParams(self._model)
            params.set_search_options(max_length=self._room, do_sample=False)
            self._generator, self._seen = self._library.Generator(self._model, params), []
        shared = 0
        limit = min(len(self._seen), len(prompt) - 1)  # at least one token is read, for its logits
        while shared < limit and self._seen[shared] == prompt[shared]:
            shared += 1
        if self._seen:
            self._generator.rewind_to(shared)
        self._seen = self._seen[:shared]
        self._append(prompt[shared:])

    def _append(self, tokens: Sequence[int]) -> None:
        self._generator.append_tokens(list(tokens))
        self._seen.extend(tokens)

    def _rest_is_unread(self, added: Sequence[int]) -> bool:
        if self._is_complete is None or "\n" not in self._tokenizer.decode(added[-1:]):
            return False
        return self._is_complete(self._decode(added).rpartition("\n")[0])

    def _decode(self, tokens: Sequence[int]) -> str:
        kept = tokens[:-1] if tokens and tokens[-1] in self._ends else tokens
        text: str = self._tokenizer.decode(kept, skip_special_tokens=True)
        return text


def num_threads() -> int:
    """$OMP_NUM_THREADS, else the cores that this process may use."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(named) if named.isdigit() and int(named) > 0 else cores


def choose_token(logits: NDArray[np.float32], sampling: Sampling, random: np.random.Generator) -> int:
    """The best token, or one drawn from the smallest set that holds `top_p` of the probability."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    scaled = logits.astype(np.float64) / sampling.temperature
    shares = np.exp(scaled - scaled.max())
    order = np.argsort(-shares)
    sums = np.cumsum(shares[order])
    kept = int(np.searchsorted(sums, sampling.top_p * sums[-1])) + 1
    return int(order[min(kept - 1, np.searchsorted(sums, random.random() * sums[:kept][-1], side="right"))])
