"""Choose the engine of the served rewriter by what is installed, and translate a batch job's server."""

from __future__ import annotations

import logging
from dataclasses import replace

from pipelines.serve.rewriter.settings import ExternalServers, ManagedVllm, ServedRewriter
from pipelines.serve.rewriter.vllm_process import installed
from rewrite.settings import ServerSettings, TransformersSettings

log = logging.getLogger("rewrite-serve")


def choose_engine(settings: ServedRewriter) -> ServedRewriter:
    """The settings, with transformers in place of a vLLM that is not installed; one server is a list of one."""
    backend = settings.backend
    if isinstance(backend, ServerSettings):
        return replace(settings, backend=_as_servers(backend))
    if isinstance(backend, ManagedVllm) and not installed():
        log.warning("vLLM is not installed: the rewriter runs in this process by transformers, which is slower")
        return replace(settings, backend=TransformersSettings())
    return settings


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
