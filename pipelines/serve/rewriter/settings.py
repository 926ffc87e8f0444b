"""Settings of the served rewriter and of the backend that runs it. Imports no heavy library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge

from pipelines.rewriters import RewriterSettings
from retrievers.errors import BadInput
from retrievers.settings import RewriteFusion
from rewrite.settings import (
    BackendSettings,
    OnnxSettings,
    RulesSettings,
    Sampling,
    ServerSettings,
    TransformersSettings,
    VllmSettings,
)

RETRY_SECONDS = 5.0
"""Seconds between attempts to prepare a server, or to load a newer rewriter."""


@dataclass(frozen=True, slots=True)
class ManagedVllm(VllmSettings):
    """vLLM as a child process of this server, which restarts it if it fails."""

    logs: str = "runs/serve/logs"
    """The folder for its output; the logs of the last five starts are kept."""
    options: tuple[str, ...] = ()
    """Further command-line options of vLLM, such as --tensor-parallel-size=2."""

    def __post_init__(self) -> None:
        reserved = ("--host", "--port", "--model", "--served-model-name", "--api-key", "--trust-remote-code")
        for option in self.options:
            if is_option(option, reserved):
                raise BadInput(f"the server itself sets {option.partition('=')[0]}, got {option!r}", "options")


def is_option(option: str, names: Sequence[str]) -> bool:
    """True if vLLM reads `option` as one of `names`: it accepts underscores, beginnings of a name and inner keys."""
    name = option.partition("=")[0].partition(".")[0].replace("_", "-")
    return name.startswith("--") and any(full.startswith(name) for full in names)


@dataclass(frozen=True, slots=True)
class ExternalServers:
    """OpenAI-compatible servers run by others; if one fails, the next is asked."""

    urls: tuple[str, ...]
    """Base URLs, including /v1."""
    model: str
    """The model's name at the servers."""
    kind: Literal["servers"] = "servers"
    key_variable: str = "OPENAI_API_KEY"
    """The environment variable with their API key; no key is sent if it is not set."""
    load_adapter: bool = False
    """Let vLLM servers on the same disk load the rewriter's adapter by its path; needs runtime LoRA updating."""
    context: Annotated[int, Ge(0)] = 0
    """Tokens of prompt and answer together; 0: ask the servers, which may not know."""

    def __post_init__(self) -> None:
        if not self.urls:
            raise BadInput("name at least one server, got none", "urls")
        for url in self.urls:
            if self.urls.count(url) > 1:
                raise BadInput(f"duplicate server URL {url}", "urls")
            ServerSettings(url, self.model)


ServedBackend = ManagedVllm | OnnxSettings | ServerSettings | ExternalServers | TransformersSettings | RulesSettings


@dataclass(frozen=True, slots=True)
class ServedRewriter:
    """The rewriter of evaluation and batch jobs, and how many utterances it takes at a time."""

    path: str | None = None
    """A rewriter folder, or the training run that wrote it."""
    base: str | None = None
    """Without `path`: a model to use as it is. With `path`: the new place of the adapter's base model."""
    template: str | None = None
    """A bundled template or a YAML file; a trained rewriter has its own."""
    phrasing: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    fusion: RewriteFusion | None = None
    """How to fuse its lists with the raw ranking; None: as the rewriter's card says."""
    backend: ServedBackend | None = None
    """None: ONNX Runtime GenAI (kind onnx) on a machine without a GPU where it is installed, otherwise vLLM."""
    concurrency: Annotated[int, Ge(1)] = 64
    """Utterances at the model at the same time; as many again may wait."""
    max_failures: Annotated[int, Ge(1)] = 5
    """Failures in a row after which a model is not asked for a while."""

    def __post_init__(self) -> None:
        self.to_rewriter_settings()

    @property
    def engine(self) -> ServedBackend:
        """The backend; vLLM where none is named."""
        return self.backend or ManagedVllm()

    def to_rewriter_settings(self) -> RewriterSettings:
        """The same rewriter in the settings of evaluation and batch jobs."""
        backend: BackendSettings
        own = self.engine
        if isinstance(own, ExternalServers):
            backend = ServerSettings(
                own.urls[0], own.model, key_variable=own.key_variable, timeout=10.0, retries=0, context=own.context
            )
        else:
            backend = own
        template = self.template or ("needs" if isinstance(backend, RulesSettings) else None)
        return RewriterSettings(self.path, self.base, template, backend, self.sampling, self.phrasing, self.fusion)
