"""What every backend can do, and the one place that makes them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol

from rewrite.settings import BackendSettings, Sampling
from rewrite.types import Answer, Prompt


class Room(Protocol):
    """What can be told of a model's room."""

    @property
    def tells_too_long(self) -> bool:
        """True where a prompt that is too long comes back without answers: it need not be counted before."""
        ...

    @property
    def context(self) -> int | None:
        """Tokens that prompt and answer may have together; None where nobody knows."""
        ...

    def count(self, prompts: Sequence[Prompt]) -> list[int] | None:
        """Tokens of each prompt, chat template and all; None where this backend cannot tell."""
        ...


class Backend(Room, Protocol):
    """A model that answers prompts."""

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        """`sampling.answers` answers a prompt, in the prompts' order. No answer is ever made up: trouble is raised.

        No answers at all for a prompt that turns out too long only when asked, where `count` could not tell.
        """
        ...


class WithoutModel:
    """Room without end: what answers without a model reads texts of any length, and counts no tokens."""

    tells_too_long = True

    @property
    def context(self) -> None:
        """Nothing is too long."""
        return None

    def count(self, prompts: Sequence[Prompt]) -> None:
        """There are no tokens."""
        return None


KINDS = {
    "transformers": "rewrite.backends.in_process:TransformersBackend",
    "vllm": "rewrite.backends.vllm_engine:VllmBackend",
    "server": "rewrite.backends.server:ServerBackend",
    "rules": "rewrite.backends.rules:RulesBackend",
    "written": "rewrite.backends.replay:WrittenBackend",
}


def make_backend(
    settings: BackendSettings, model: Path | None, adapter: Path | None = None, device: str | None = None
) -> Backend:
    """The backend that these settings ask for, with the model of a folder and, where given, a LoRA adapter on it.

    A server has its model already, rules and what is written need none: `model` is then None. An adapter is loaded into
    a server by its path.
    """
    module, _, name = KINDS[settings.kind].partition(":")
    backend: Backend = getattr(import_module(module), name)(settings, model, adapter, device)
    return backend
