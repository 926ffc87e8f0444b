"""The model in this process, run by vLLM with continuous batching.

Prompts go in as tokens, the same as with the transformers backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewrite.backends.model_folder import adapter_config, adapter_mismatch, check_fit, encode, in_short, load_tokenizer
from rewrite.backends.streams import StreamResult
from rewrite.backends.vllm_start import platform, start
from rewrite.errors import BackendDown, RewriteError
from rewrite.settings import Sampling, VllmSettings
from rewrite.types import Answer, Prompt

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""LoRA ranks that vLLM supports."""


class VllmBackend:
    """Answers by vLLM's `LLM`."""

    rejects_long_prompts = False

    def __init__(
        self, settings: VllmSettings, model: Path, adapter: Path | None = None, device: str | None = None
    ) -> None:
        platform(device)
        self._tokenizer = load_tokenizer(model)
        options: dict[str, Any] = {"max_model_len": settings.context} if settings.context else {}
        if adapter is not None:
            options |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": max_lora_rank(adapter, model)}
        self._engine = start(model, settings.dtype, settings.eager, settings.gpu_memory, **options)
        self._lora = None if adapter is None else self._load_adapter(adapter, model)

    def _load_adapter(self, adapter: Path, model: Path) -> Any:
        """Loads the adapter now, so that it does not fail at the first prompt."""
        from vllm.lora.request import LoRARequest

        request = LoRARequest(adapter.resolve().name, 1, str(adapter.resolve()))
        try:
            self._engine.llm.llm_engine.add_lora(request)
        except Exception as error:  # any error of vLLM's layers: asserts, shapes, missing modules
            raise adapter_mismatch(adapter, model) from error
        return request

    @property
    def context(self) -> int | None:
        """Tokens of prompt and answer together."""
        return int(self._engine.llm.llm_engine.model_config.max_model_len)

    def count(self, prompts: Sequence[Prompt]) -> list[int]:
        return [len(tokens) for tokens in encode(self._tokenizer, prompts)]

    def encode(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[int]]:
        """Tokens of the prompts; refuses one that leaves no room for an answer."""
        encoded = encode(self._tokenizer, prompts)
        check_fit(encoded, sampling.max_tokens, self.context)
        return encoded

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        """Answers in the prompts' order. Each prompt is sampled from the seed, independently of the others."""
        encoded = self.encode(prompts, sampling)
        if not encoded:
            return []
        params = _params(sampling)
        inputs = [{"prompt_token_ids": tokens} for tokens in encoded]
        try:
            outputs = self._engine.generate(inputs, params, use_tqdm=show_progress, lora_request=self._lora)
        except Exception as error:
            raise _engine_error(error) from error
        return [[_answer(output) for output in request.outputs] for request in outputs]

    def stream(self, sampling: Sampling) -> VllmStream:
        """A stream of prompts through the running batch."""
        return VllmStream(self, self._engine.llm.llm_engine, self._lora, sampling)


class VllmStream:
    """Prompts in flight through the engine, always more than it answers at a time."""

    overlaps = True

    def __init__(self, backend: VllmBackend, engine: Any, lora: Any, sampling: Sampling) -> None:
        self._backend, self._engine, self._lora, self._sampling = backend, engine, lora, sampling
        self._params = _params(sampling)
        self._capacity = 2 * int(engine.vllm_config.scheduler_config.max_num_seqs)
        self._in_flight: set[str] = set()

    @property
    def capacity(self) -> int:
        return self._capacity - len(self._in_flight)

    def push(self, prompts: Sequence[tuple[str, Prompt]]) -> None:
        encoded = self._backend.encode([prompt for _, prompt in prompts], self._sampling)
        for (key, _), tokens in zip(prompts, encoded, strict=True):
            try:
                self._engine.add_request(key, {"prompt_token_ids": tokens}, self._params, lora_request=self._lora)
            except Exception as error:
                raise _engine_error(error) from error
            self._in_flight.add(key)

    def pull(self) -> list[StreamResult]:
        """Runs the engine until a prompt is answered."""
        while self._in_flight:
            try:
                done = [request for request in self._engine.step() if request.finished]
            except Exception as error:
                raise _engine_error(error) from error
            if done:
                self._in_flight.difference_update(request.request_id for request in done)
                return [(request.request_id, [_answer(output) for output in request.outputs]) for request in done]
        return []

    def close(self) -> None:
        self._engine.abort_request(list(self._in_flight))
        self._in_flight.clear()


def _params(sampling: Sampling) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=sampling.answers,
        temperature=sampling.temperature,
        top_p=sampling.top_p if sampling.temperature > 0 else 1.0,
        max_tokens=sampling.max_tokens,
        seed=sampling.seed,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _engine_error(error: Exception) -> BackendDown:
    """The error about a dead engine or a missing kernel: another prompt would fail too."""
    return BackendDown(f"vLLM failed: {in_short(error)}; try the transformers backend")


def _answer(output: Any) -> Answer:
    return Answer(output.text, len(output.token_ids), output.finish_reason == "stop")


def max_lora_rank(adapter: Path, model: Path) -> int:
    """The smallest supported rank that holds an adapter."""
    rank = int(adapter_config(adapter, model).get("r", 0))
    supported = next((known for known in RANKS if known >= rank > 0), None)
    if supported is None:
        raise RewriteError(f"the adapter {adapter} has rank {rank}; vLLM takes LoRA adapters from 1 to {RANKS[-1]}")
    return supported
