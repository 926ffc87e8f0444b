"""vLLM for a generative retriever: brought up as rewriters do it, its trouble told as the retrievers' own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from retrievers.errors import BadInput, ModelMissing
from rewrite.errors import RewriteError


def vllm() -> Callable[..., Any]:
    """What starts vLLM with a model's folder and options; refuses where it is not installed."""
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
