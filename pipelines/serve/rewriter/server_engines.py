"""Engines on servers: OpenAI-compatible ones elsewhere, and a managed vLLM."""

from __future__ import annotations

import asyncio
import logging

from pipelines.rewriters import RewriterParts
from pipelines.serve.rewriter.dispatcher import LoadedRewriter
from pipelines.serve.rewriter.endpoints import HttpClients, ServerEndpoint, open_clients
from pipelines.serve.rewriter.engine import EngineSetup, RewriterEngine
from pipelines.serve.rewriter.settings import ExternalServers, ManagedVllm
from pipelines.serve.rewriter.vllm_process import KEY_VARIABLE, MODEL_NAME, VllmProcess
from rewrite.backends.server import ServerBackend
from rewrite.settings import ServerSettings

LOAD_SECONDS = 60.0
"""Seconds for a server to load an adapter."""
log = logging.getLogger("rewrite-serve")


class ServersEngine(RewriterEngine):
    """OpenAI-compatible servers."""

    _model, _key_variable, _context, _loads_adapter = MODEL_NAME, KEY_VARIABLE, 0, True
    _servers: list[ServerEndpoint]
    _clients: HttpClients

    async def start(self) -> None:
        engine = self._settings.engine
        assert isinstance(engine, ExternalServers)
        self._model, self._key_variable, self._loads_adapter = engine.model, engine.key_variable, engine.load_adapter
        self._context = engine.context
        self._clients = open_clients(any(url.lower().startswith("https:") for url in engine.urls))
        self._servers = [
            ServerEndpoint(url, self._clients, self._breaker(), engine.key_variable, engine.load_adapter)
            for url in engine.urls
        ]
        for server in self._servers:
            server.url = server.name.rstrip("/")
        self._dispatcher.endpoints = self._servers

    async def load(self, parts: RewriterParts) -> None:
        """The first server that has it decides; the others follow at once, or when they are back."""
        running = [server for server in self._servers if server.url]
        for server in running:
            try:
                self._dispatcher.loaded = await self._prepare(server, parts)
                break
            except (OSError, ValueError):
                if server is running[-1]:
                    raise
        self.parts = parts
        await self.retry()

    async def retry(self) -> None:
        await asyncio.gather(*map(self._retry, self._servers))

    async def _retry(self, server: ServerEndpoint) -> None:
        loaded, parts = self._dispatcher.loaded, self.parts
        if server.url and (loaded is None or not server.serves(loaded.model)):
            try:
                prepared = await self._prepare(server, parts)
                if parts is self.parts:  # else a newer rewriter was loaded meanwhile
                    self._dispatcher.loaded = prepared
            except (OSError, ValueError) as error:
                log.warning("the rewriter is not ready at %s: %s", server.name, error)
        self._metrics.endpoint_up.labels(server.name).set(bool(server.backends))

    async def _prepare(self, server: ServerEndpoint, parts: RewriterParts) -> LoadedRewriter:
        """Let a server load the rewriter; from then on it answers requests for it."""
        settings = ServerSettings(
            server.url,
            self._model,
            key_variable=self._key_variable,
            timeout=LOAD_SECONDS,
            retries=0,
            context=self._context,
        )
        adapter = parts.adapter if self._loads_adapter else None
        backend = await asyncio.to_thread(ServerBackend, settings, adapter=adapter)
        loaded = await self._loaded(backend.model, parts, backend)
        server.backends[backend.model] = backend
        server.breaker.succeeded()
        return loaded

    async def unload(self, model: str) -> None:
        if self._dispatcher.loaded is not None and self._dispatcher.loaded.model == model:
            return
        for server in self._servers:
            if server.backends.pop(model, None) is not None and server.url:
                await server.unload(model)

    async def close(self) -> None:
        await self._clients.close()


class VllmEngine(ServersEngine):
    """A vLLM that this process starts, watches and restarts."""

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        assert isinstance(setup.settings.engine, ManagedVllm)
        self._vllm, self._context = setup.settings.engine, setup.settings.engine.context
        self._lora_rank = self._rank_for(self.parts)
        self._process: VllmProcess | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._clients = open_clients(tls=False)
        self._servers = [ServerEndpoint("vllm", self._clients, self._breaker(), KEY_VARIABLE)]
        self._dispatcher.endpoints = self._servers
        self._start_process()

    async def load(self, parts: RewriterParts) -> None:
        """Load another adapter of the same model, if its rank fits; otherwise restart vLLM."""
        old, rank = self.parts, await asyncio.to_thread(self._rank_for, parts)
        fits = old.adapter and parts.adapter and old.model == parts.model and rank <= self._lora_rank
        if fits and not self._dispatcher.failure:
            await super().load(parts)
            return
        self.parts, self._lora_rank = parts, rank
        await self._stop_process()
        self._start_process()

    async def retry(self) -> None:
        await super().retry()
        if self._process is not None:
            self._metrics.vllm_starts.set(self._process.starts)

    async def close(self) -> None:
        await self._stop_process()
        await super().close()

    def _start_process(self) -> None:
        [server] = self._servers
        assert self.parts.model is not None  # only ExternalServers have none

        async def on_up(url: str) -> None:
            server.url = url
            await self.retry()
            await self._load_second(url)

        def on_down() -> None:
            server.url = ""
            if self._second is not None:
                self._second.url = ""
            server.backends.clear()
            self._metrics.endpoint_up.labels(server.name).set(0)

        def on_give_up(cause: str) -> None:
            self._dispatcher.failure = cause

        self._dispatcher.failure = ""
        self._process = VllmProcess(self._vllm, self.parts.model, self._lora_rank, on_up, on_down, on_give_up)
        self._task = asyncio.create_task(self._process.run())

    def _rank_for(self, parts: RewriterParts) -> int:
        shares_base = self._second is not None and self._second.base == parts.model
        return max(_lora_rank(parts), self._second.rank if self._second and shares_base else 0)

    async def _load_second(self, url: str) -> None:
        if self._second is not None:
            try:
                await asyncio.to_thread(self._second.load, url, self.parts.model)
            except (OSError, ValueError) as error:
                log.warning("vLLM does not load the reranker: %s", error)

    async def _stop_process(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _lora_rank(parts: RewriterParts) -> int:
    """The LoRA rank that vLLM must reserve; 0 without an adapter."""
    if parts.adapter is None or parts.model is None:
        return 0
    from rewrite.backends.vllm_engine import max_lora_rank

    return max_lora_rank(parts.adapter, parts.model)
