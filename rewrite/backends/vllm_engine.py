"""The model in this process, by vLLM: many prompts at a time, each in and out of the batch as it comes.

Prompts go in as tokens, the same ones that the transformers backend asks with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewrite.backends.model_folder import adapter_config, encode, in_short, load_tokenizer, misfit, must_fit
from rewrite.backends.streams import Answered
from rewrite.backends.vllm_start import platform, start
from rewrite.errors import BackendDown, Unfit
from rewrite.settings import Sampling, VllmSettings
from rewrite.types import Answer, Prompt

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The LoRA ranks for which vLLM makes room."""


class VllmBackend:
    """Answers by vLLM's `LLM`."""

    tells_too_long = False

    def __init__(
        self, settings: VllmSettings, model: Path, adapter: Path | None = None, device: str | None = None
    ) -> None:
        platform(device)
        self._tokenizer = load_tokenizer(model)
        options: dict[str, Any] = {"max_model_len": settings.context} if settings.context else {}
        if adapter is not None:
            options |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": lora_room(adapter, model)}
        self._engine = start(model, settings.dtype, settings.eager, gpu_memory_utilization=settings.memory, **options)
        self._lora = None if adapter is None else self._loaded(adapter, model)

    def _loaded(self, adapter: Path, model: Path) -> Any:
        """The adapter, put into the engine now: trouble with it should not wait for the first prompt."""
        from vllm.lora.request import LoRARequest

        request = LoRARequest(adapter.resolve().name, 1, str(adapter.resolve()))
        try:
            self._engine.llm.llm_engine.add_lora(request)
        except Exception as error:  # vLLM raises whatever its layers do: asserts, shapes, missing modules
            raise misfit(adapter, model) from error
        return request

    @property
    def context(self) -> int | None:
        """Tokens that prompt and answer may have together."""
        return int(self._engine.llm.llm_engine.model_config.max_model_len)

    def count(self, prompts: Sequence[Prompt]) -> list[int]:
        """Tokens of each prompt, chat template and all."""
        return [len(tokens) for tokens in encode(self._tokenizer, prompts)]

    def encode(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[int]]:
        """The prompts as tokens; one that leaves no room for an answer is refused."""
        encoded = encode(self._tokenizer, prompts)
        must_fit(encoded, sampling.most_tokens, self.context)
        return encoded

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        """Answers in the prompts' order. Each prompt is sampled from the seed by itself, whatever its company."""
        encoded = self.encode(prompts, sampling)
        if not encoded:
            return []
        params = _params(sampling)
        asked = [{"prompt_token_ids": tokens} for tokens in encoded]
        try:
            found = self._engine.generate(asked, params, use_tqdm=show_progress, lora_request=self._lora)
        except Exception as error:
            raise _failed(error) from error
        return [[_answer(output) for output in request.outputs] for request in found]

    def stream(self, sampling: Sampling) -> VllmStream:
        """Prompts in and out of the running batch as they come and go."""
        return VllmStream(self, self._engine.llm.llm_engine, self._lora, sampling)


class VllmStream:
    """Prompts on their way through the engine: always more of them waiting than it can answer at a time."""

    overlaps = True

    def __init__(self, backend: VllmBackend, engine: Any, lora: Any, sampling: Sampling) -> None:
        self._backend, self._engine, self._lora, self._sampling = backend, engine, lora, sampling
        self._params = _params(sampling)
        self._most = 2 * int(engine.vllm_config.scheduler_config.max_num_seqs)
        self._under_way: set[str] = set()

    @property
    def room(self) -> int:
        """How many more prompts it takes now."""
        return self._most - len(self._under_way)

    def push(self, prompts: Sequence[tuple[str, Prompt]]) -> None:
        """Takes prompts, each under a key of its own."""
        encoded = self._backend.encode([prompt for _, prompt in prompts], self._sampling)
        for (key, _), tokens in zip(prompts, encoded, strict=True):
            asked = {"prompt_token_ids": tokens}
            try:
                self._engine.add_request(key, asked, self._params, lora_request=self._lora)
            except Exception as error:
                raise _failed(error) from error
            self._under_way.add(key)

    def pull(self) -> list[Answered]:
        """Goes on until the first prompt is answered."""
        while self._under_way:
            try:
                found = [request for request in self._engine.step() if request.finished]
            except Exception as error:
                raise _failed(error) from error
            if found:
                self._under_way.difference_update(request.request_id for request in found)
                return [(request.request_id, [_answer(each) for each in request.outputs]) for request in found]
        return []

    def close(self) -> None:
        """Drops what is under way."""
        self._engine.abort_request(list(self._under_way))
        self._under_way.clear()


def _params(sampling: Sampling) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=sampling.answers,
        temperature=sampling.temperature,
        top_p=sampling.top_p if sampling.temperature > 0 else 1.0,
        max_tokens=sampling.most_tokens,
        seed=sampling.seed,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _failed(error: Exception) -> BackendDown:
    """A dead engine, a kernel that this machine lacks: nothing that another prompt mends."""
    return BackendDown(f"vLLM failed: {in_short(error)}; try the transformers backend")


def _answer(output: Any) -> Answer:
    return Answer(output.text, len(output.token_ids), output.finish_reason == "stop")


def lora_room(adapter: Path, model: Path) -> int:
    """The room to make for an adapter: its rank, or the next that vLLM knows."""
    rank = int(adapter_config(adapter, model).get("r", 0))
    room = next((known for known in RANKS if known >= rank > 0), None)
    if room is None:
        raise Unfit(f"the adapter {adapter} has rank {rank}; vLLM takes LoRA adapters from 1 to {RANKS[-1]}")
    return room
