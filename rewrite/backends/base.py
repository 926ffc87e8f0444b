"""The protocol of all backends, and the one function that makes them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from rewrite.errors import RewriteError
from rewrite.settings import BackendSettings, Sampling
from rewrite.types import Answer, Prompt


class TokenBudget(Protocol):
    """The part of a backend that knows how long prompts may be."""

    @property
    def rejects_long_prompts(self) -> bool:
        """True where a prompt that is too long comes back without answers: it need not be counted before."""
        ...

    @property
    def context(self) -> int | None:
        """Tokens of prompt and answer together; None where unknown."""
        ...

    def count(self, prompts: Sequence[Prompt]) -> list[int] | None:
        """Tokens of each prompt, chat template included; None where this backend cannot count."""
        ...


class Backend(TokenBudget, Protocol):
    """A model that answers prompts."""

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        """`sampling.answers` answers per prompt, in the prompts' order. Failures are raised, never answered.

        A prompt that only generation finds too long, where `count` could not tell, gets no answers.
        """
        ...


class ModelFreeBackend:
    """Base of backends without a model: texts of any length, no tokens. Their config names no model."""

    rejects_long_prompts = True
    context = None

    def __init__(
        self,
        settings: BackendSettings,
        model: Path | None = None,
        adapter: Path | None = None,
        device: str | None = None,
    ) -> None:
        if model is not None or adapter is not None:
            raise RewriteError("rules and replayed rewrites need no model; leave `base` and `path` out")

    def count(self, prompts: Sequence[Prompt]) -> None:
        """Counts nothing: there are no tokens."""
        return None


BACKENDS = {
    "transformers": "rewrite.backends.in_process:TransformersBackend",
    "vllm": "rewrite.backends.vllm_engine:VllmBackend",
    "onnx": "rewrite.backends.onnx_engine:OnnxBackend",
    "server": "rewrite.backends.server:ServerBackend",
    "rules": "rewrite.backends.rules:RulesBackend",
    "replay": "rewrite.backends.replay:ReplayBackend",
}


def make_backend(
    settings: BackendSettings, model: Path | None, adapter: Path | None = None, device: str | None = None
) -> Backend:
    """The backend of these settings, with the model of a folder and, where given, a LoRA adapter on it.

    `model` is None for a server, which has its model already, for rules and for replay. A server loads an adapter from
    its path.
    """
    backend: Backend = find_backend(settings.kind)(settings, model, adapter, device)
    return backend


def find_backend(kind: str) -> Any:
    """The class of a kind of backend; a package that it lacks is named."""
    module, _, name = BACKENDS[kind].partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise RewriteError(
            f"a rewriter on {kind} needs {error.name}; run `pip install 'toolrewrite[torch]'`"
        ) from error
