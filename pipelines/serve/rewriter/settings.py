"""What can be set of the rewriter that is served, and of what runs it. Stdlib only, as all settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pipelines.rewriters import RewriterSettings
from retrievers.errors import BadInput
from retrievers.settings import RewriteFusion
from rewrite.settings import (
    BackendSettings,
    RulesSettings,
    Sampling,
    ServerSettings,
    TransformersSettings,
    VllmSettings,
)


@dataclass(frozen=True, slots=True)
class ManagedVllm:
    """vLLM as a child of this server: started, watched, started again."""

    kind: Literal["vllm"] = "vllm"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: as the model has it on GPUs, float32 on CPUs."""
    context: int = 0
    """Tokens of prompt and answer together; 0: as the model has it."""
    memory: float = 0.9
    """The share of a GPU's memory that vLLM takes; on a CPU, gibibytes of its cache are $VLLM_CPU_KVCACHE_SPACE."""
    eager: bool = False
    """Skip compilation: starts faster, answers slower."""
    port: int = 0
    """0: any that is free. It listens on the loopback alone."""
    logs: str = "runs/serve/logs"
    """The folder of its output; the last few starts are kept."""
    start_seconds: float = 600.0
    """Seconds to become healthy before it is started again."""
    options: tuple[str, ...] = ()
    """Further options of vLLM, such as --tensor-parallel-size=2."""

    def __post_init__(self) -> None:
        if self.context < 0 or not 0 < self.memory <= 1 or self.start_seconds <= 0 or not 0 <= self.port < 65536:
            raise BadInput("context and port must not be negative, memory is a share, start_seconds is positive")
        taken = ("--host", "--port", "--model", "--served-model-name", "--api-key", "--trust-remote-code")
        for option in self.options:
            if option.partition("=")[0] in taken:
                raise BadInput(f"{option.partition('=')[0]} is not for `options`: the server sets it", "options")


@dataclass(frozen=True, slots=True)
class ExternalServers:
    """OpenAI-compatible servers that somebody else runs; the next is asked where one fails."""

    urls: tuple[str, ...]
    """Each up to and with /v1."""
    model: str
    """The name the servers know the model by."""
    kind: Literal["servers"] = "servers"
    key_variable: str = "OPENAI_API_KEY"
    """The environment variable that holds their API key; nothing is sent where it is not set."""
    context: int = 0
    """Tokens of prompt and answer together; 0: ask the server, which may not say."""
    load_adapter: bool = False
    """Have them load the rewriter's adapter, by its path: for vLLM with runtime updating on the same disk."""

    def __post_init__(self) -> None:
        if not self.urls:
            raise BadInput("there is no server to ask", "urls")
        if len(set(self.urls)) < len(self.urls):
            raise BadInput("a server stands there twice", "urls")
        for url in self.urls:
            ServerSettings(url, self.model, context=self.context)


@dataclass(frozen=True, slots=True)
class InProcess:
    """The model in this process, by transformers."""

    kind: Literal["transformers"] = "transformers"
    batch_size: int = 8
    """Answers written at a time."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise BadInput("at least 1", "batch_size")


@dataclass(frozen=True, slots=True)
class ByRules:
    """No model at all: the utterance's clauses, shortened, in a fraction of a millisecond."""

    kind: Literal["rules"] = "rules"


Engine = ManagedVllm | ExternalServers | InProcess | ByRules


@dataclass(frozen=True, slots=True)
class ServedRewriter:
    """A rewriter and what runs it."""

    path: str | None = None
    """A rewriter's folder, or the training run it came from."""
    base: str | None = None
    """Without `path` the model that is asked as it is; with it, where the adapter's base model lies now."""
    template: str | None = None
    """A bundled template or a YAML file; a trained rewriter brings its own."""
    phrasing: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    fusion: RewriteFusion | None = None
    """How its lists join the raw query's; not set: as the rewriter's card says."""
    engine: Engine = field(default_factory=ManagedVllm)
    concurrency: int = 64
    """Utterances at the model at the same time; as many again may wait."""
    cache: int = 10_000
    """Rewrites that are remembered."""
    failures: int = 5
    """Failures in a row after which a model is left alone for a while."""

    def __post_init__(self) -> None:
        if min(self.concurrency, self.failures) < 1 or self.cache < 0:
            raise BadInput("concurrency and failures are at least 1, cache is not negative")
        self.plain()

    def plain(self, url: str = "") -> RewriterSettings:
        """The same rewriter as evaluation and batch jobs know it."""
        match self.engine:
            case ExternalServers() as servers:
                backend: BackendSettings = ServerSettings(
                    url or servers.urls[0],
                    servers.model,
                    key_variable=servers.key_variable,
                    context=servers.context,
                    timeout=10.0,
                    retries=0,
                )
            case ManagedVllm() as vllm:
                backend = VllmSettings(context=vllm.context, gpu_memory=vllm.memory, eager=vllm.eager, dtype=vllm.dtype)
            case InProcess() as local:
                backend = TransformersSettings(batch_size=local.batch_size)
            case ByRules():
                backend = RulesSettings()
        template = self.template or ("needs" if isinstance(backend, RulesSettings) else None)
        return RewriterSettings(self.path, self.base, template, backend, self.sampling, self.phrasing)
