"""Choose the engine of the served rewriter by machine and packages, and translate a batch job's server."""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib.util import find_spec

from pipelines.rewriters import find_parts
from pipelines.serve.rewriter.settings import ExternalServers, ManagedVllm, ServedRewriter
from pipelines.serve.rewriter.vllm_process import installed
from rewrite.backends.onnx_conversion import find_obstacle
from rewrite.settings import OnnxSettings, ServerSettings, TransformersSettings

log = logging.getLogger("rewrite-serve")


def choose_engine(settings: ServedRewriter, shares_vllm: bool = False) -> ServedRewriter:
    """The settings with an engine that can run here; says which was chosen, and why.

    One server is a list of one. `shares_vllm`: a reranker needs the rewriter's vLLM.
    """
    backend = settings.backend
    if isinstance(backend, ServerSettings):
        return replace(settings, backend=_as_servers(backend))
    if backend is None:
        backend = _choose(settings, shares_vllm)
    elif isinstance(backend, OnnxSettings) and (obstacle := _obstacle(settings)):
        log.warning("the rewriter does not run by ONNX Runtime GenAI: %s", obstacle)
        backend = ManagedVllm()
    if isinstance(backend, ManagedVllm) and not installed():
        log.warning("vLLM is not installed: the rewriter runs in this process by transformers, which is slower")
        backend = TransformersSettings()
    return replace(settings, backend=backend)


def _choose(settings: ServedRewriter, shares_vllm: bool) -> OnnxSettings | ManagedVllm:
    if shares_vllm:
        reason = "the reranker shares it"
    elif has_gpu():
        reason = "this machine has a GPU"
    elif not (reason := _obstacle(settings)):
        log.info("the rewriter runs by ONNX Runtime GenAI, in this process: this machine has no GPU")
        return OnnxSettings()
    log.info("the rewriter runs by vLLM: %s", reason)
    return ManagedVllm()


def _obstacle(settings: ServedRewriter) -> str:
    model = find_parts(settings.to_rewriter_settings()).model
    return find_obstacle(model) if model else "the config names no model"


def has_gpu() -> bool:
    """True if PyTorch finds a GPU; without PyTorch nothing here could use one."""
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def _as_servers(server: ServerSettings) -> ExternalServers:
    """The same server for serving, where other settings limit time and concurrency; says so if some are set."""
    usual = ServerSettings(server.url, server.model)
    names = [name for name in ("timeout", "retries", "concurrency") if getattr(server, name) != getattr(usual, name)]
    if names:
        log.warning(
            "rewriter.backend: not used for serving: %s; set `deadline_ms` and `rewriter.concurrency` in their place",
            ", ".join(names),
        )
    return ExternalServers((server.url,), server.model, key_variable=server.key_variable, context=server.context)
