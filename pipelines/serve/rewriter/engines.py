"""The engine that the settings name; models and rules in this process."""

from __future__ import annotations

import asyncio

from pipelines.rewriters import RewriterParts, load_rewriter, running_kind
from pipelines.serve.rewriter.endpoints import LocalEndpoint
from pipelines.serve.rewriter.engine import EngineSetup, RewriterEngine
from pipelines.serve.rewriter.server_engines import ServersEngine, VllmEngine
from pipelines.serve.rewriter.settings import ExternalServers, ManagedVllm
from pipelines.serve.rewriter.vllm_process import MODEL_NAME
from rewrite.backends.base import Backend

LOCAL_BATCH = {"transformers": 8, "onnx": 1, "rules": 64}
"""Answers per batch of an engine in this process."""


class LocalEngine(RewriterEngine):
    """A model or rules in this process."""

    def __init__(self, setup: EngineSetup) -> None:
        """Loads the model, so that a config that cannot work fails at once."""
        super().__init__(setup)
        self._endpoints: list[LocalEndpoint] = []
        self._first: Backend | None = self._load_backend(self.parts)

    def _load_backend(self, parts: RewriterParts) -> Backend:
        return load_rewriter(self._settings.to_rewriter_settings(), parts, self._device).backend

    async def start(self) -> None:
        backend, self._first = self._first, None  # only the endpoint keeps it, so that unloading frees its memory
        assert backend is not None
        await self._add(self.parts, backend)

    async def load(self, parts: RewriterParts) -> None:
        await self._add(parts, await asyncio.to_thread(self._load_backend, parts))

    async def _add(self, parts: RewriterParts, backend: Backend) -> None:
        kind = running_kind(self._settings.engine.kind, backend)
        name = f"{MODEL_NAME}-{parts.facts.get('fingerprint', 'local')}"
        loaded = await self._loaded(name, parts, backend, kind)
        batch_size = max(1, LOCAL_BATCH[kind] // self._settings.sampling.answers)
        endpoint = LocalEndpoint(kind, backend, name, self._breaker(), batch_size)
        self._endpoints = [endpoint, *self._endpoints]
        self._dispatcher.endpoints, self._dispatcher.loaded, self.parts = self._endpoints, loaded, parts
        self._metrics.endpoint_up.labels(kind).set(1)

    async def unload(self, model: str) -> None:
        current, *older = self._endpoints
        leaving = [endpoint for endpoint in older if endpoint.serves(model)]
        self._endpoints = [current, *(endpoint for endpoint in older if endpoint not in leaving)]
        self._dispatcher.endpoints = self._endpoints
        for endpoint in leaving:
            endpoint.close()

    async def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.close()


def make_engine(setup: EngineSetup) -> RewriterEngine:
    """The engine that the settings name; nothing is started yet."""
    match setup.settings.engine:
        case ManagedVllm():
            return VllmEngine(setup)
        case ExternalServers():
            return ServersEngine(setup)
    return LocalEngine(setup)
