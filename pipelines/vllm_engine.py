"""vLLM for generative retrievers: started as for rewriters, with the retrievers' own errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from retrievers.errors import BadInput, ModelMissing
from rewrite.errors import RewriteError


def vllm() -> Callable[..., Any]:
    """A function that starts vLLM with a model folder and options; raises ModelMissing if it is not installed."""
    from rewrite.backends import vllm_start

    try:
        vllm_start.platform()
    except RewriteError as error:
        raise ModelMissing(str(error)) from error

    def start(model: Path, **options: Any) -> Any:
        try:
            return vllm_start.start(model, **options)
        except RewriteError as error:
            raise BadInput(f"{error}; take the engine transformers") from error

    return start
