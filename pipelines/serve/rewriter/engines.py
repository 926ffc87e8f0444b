"""Brings the rewriter up, keeps it up, and takes up a newer one: vLLM, servers elsewhere, a model or rules here."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.rewriters import Parts, describe, find_parts, load_rewriter
from pipelines.serve.metrics import Metrics
from pipelines.serve.rewriter.breaker import Breaker
from pipelines.serve.rewriter.endpoints import Clients, LocalEndpoint, ServerEndpoint, open_clients
from pipelines.serve.rewriter.prompt_budget import QuickRoom
from pipelines.serve.rewriter.rewriting import Loaded, Rewriting
from pipelines.serve.rewriter.settings import ByRules, ExternalServers, InProcess, ManagedVllm, ServedRewriter
from pipelines.serve.rewriter.vllm_process import KEY_VARIABLE, SERVED, VllmProcess, installed
from pipelines.system_description import fusion_warning
from retrievers.settings import RewriteFusion
from rewrite.backends.base import Backend
from rewrite.backends.server import ServerBackend
from rewrite.folder import CARD_FILE
from rewrite.rewriter import Rewriter
from rewrite.settings import ServerSettings

RETRY = 5.0
"""Seconds between tries to prepare a server that is there but not ready, or to take up what could not be taken up."""
PREPARE_SECONDS = 60.0
"""For a server to load an adapter."""
AT_ONCE = 64
"""Utterances that rules take in one go."""
GRACE = 60.0
"""Seconds that an old adapter is kept for those who still wait for it."""
log = logging.getLogger("rewrite-serve")


class Models:
    """The rewriter's life, beside the requests."""

    def __init__(self, settings: ServedRewriter, rewriting: Rewriting, metrics: Metrics, device: str | None) -> None:
        """Finds and checks the parts, and loads what runs in this process; nothing is started yet."""
        if isinstance(settings.engine, ManagedVllm) and not installed():
            log.warning("vLLM is not installed: the rewriter runs in this process by transformers, which is slower")
            settings = replace(settings, engine=InProcess())
        self.settings, self.rewriting, self._metrics, self._device = settings, rewriting, metrics, device
        self.parts = find_parts(settings.plain())
        self._room_and_cpu = _fits(self.parts) if isinstance(settings.engine, ManagedVllm) else (0, True)
        self._first: Rewriter | None = None
        if isinstance(settings.engine, InProcess | ByRules):
            self._first = load_rewriter(settings.plain(), self.parts, device)
        self._told = ""
        self._stamp = self._card_stamp()
        self._left, self._again, self._turn = self._stamp, 0.0, asyncio.Lock()
        self._process: VllmProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._clients: Clients | None = None
        self.servers: list[ServerEndpoint] = []
        self._local: LocalEndpoint | None = None

    @property
    def fusion(self) -> RewriteFusion:
        """How its lists join the raw query's."""
        return self.settings.fusion or self.parts.fusion or RewriteFusion()

    @property
    def engine(self) -> str:
        """What runs the rewriter, in a word."""
        return self.settings.engine.kind

    def mind(self, retriever: str) -> None:
        """Tells, once, where the rewriter's own share was chosen in front of other retrievers than this."""
        told = fusion_warning(self.parts, retriever, "rewriter.fusion") if self.settings.fusion is None else ""
        if told and told != self._told:
            log.warning("%s", told)
        self._told = told

    def ready(self) -> bool:
        """Whether somebody has the rewriter now."""
        loaded = self.rewriting.loaded
        return loaded is not None and any(each.serves(loaded.model) for each in self.rewriting.endpoints)

    async def start(self) -> None:
        """Starts what has to be started; does not wait until it is up, unless it is in this process."""
        match self.settings.engine:
            case ManagedVllm() as managed:
                self._clients = clients = open_clients(tls=False)
                self.servers = [ServerEndpoint("vllm", clients, self._breaker(), KEY_VARIABLE)]
                await self._start_vllm(managed)
            case ExternalServers() as external:
                self._clients = clients = open_clients(any(url.lower().startswith("https:") for url in external.urls))
                variable, forgets = external.key_variable, external.load_adapter
                self.servers = [
                    ServerEndpoint(url, clients, self._breaker(), variable, forgets) for url in external.urls
                ]
                for server, url in zip(self.servers, external.urls, strict=True):
                    server.url = url.rstrip("/")
            case InProcess() | ByRules():
                await self._load_here(self.parts)
                return
        self.rewriting.endpoints = self.servers

    async def close(self) -> None:
        """Ends what was started."""
        for leaving in self._leaving:
            leaving.cancel()
        await self._stop_vllm()
        if self._local is not None:
            self._local.close()
        if self._clients is not None:
            await self._clients.close()

    async def tend(self) -> None:
        """Prepares servers that are there and not ready yet."""
        await asyncio.gather(*map(self._tend, self.servers))
        if self._process is not None:
            self._metrics.vllm_starts.set(self._process.starts)

    async def _tend(self, server: ServerEndpoint) -> None:
        loaded, parts = self.rewriting.loaded, self.parts
        if server.url and (loaded is None or not server.serves(loaded.model)):
            try:
                made = await self._prepare(server, parts)
                if parts is self.parts:  # else a newer rewriter was taken up meanwhile
                    self.rewriting.loaded = made
            except (OSError, ValueError) as error:
                log.warning("the rewriter is not ready at %s: %s", server.name, error)
        self._metrics.endpoint_up.labels(server.name).set(bool(server.backends))

    async def refresh(self) -> bool:
        """Takes up a newer version of the rewriter's folder; one that cannot be used is told, and tried again later."""
        async with self._turn:
            stamp = self._card_stamp()
            if stamp in (self._stamp, None) or (stamp == self._left and time.monotonic() < self._again):
                return False
            self._left, self._again = stamp, time.monotonic() + RETRY
            try:
                parts = await asyncio.to_thread(find_parts, self.settings.plain())
                await self._take(parts)
            except (OSError, ValueError) as error:
                self._metrics.reloads.labels("rewriter", "failed").inc()
                log.warning("the newer rewriter is not taken up: %s", error)
                return False
            self._stamp = stamp
        self._metrics.reloads.labels("rewriter", "done").inc()
        log.info("rewriter %s", parts.facts.get("fingerprint"))
        return True

    async def _take(self, parts: Parts) -> None:
        before, old = self.rewriting.loaded, self.parts
        if isinstance(self.settings.engine, InProcess | ByRules):
            await self._load_here(parts)
            self.parts = parts
        elif isinstance(self.settings.engine, ManagedVllm) and self._needs_restart(old, parts):
            self.parts, self._room_and_cpu = parts, await asyncio.to_thread(_fits, parts)
            await self._stop_vllm()
            await self._start_vllm(self.settings.engine)
            return
        else:
            await self._take_by_servers(parts)
        after = self.rewriting.loaded
        if before is not None and after is not None and before.model != after.model:
            leaving = asyncio.create_task(self._unload(before.model))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _take_by_servers(self, parts: Parts) -> None:
        """The first server that has it decides; the others follow at once, or when they are back."""
        trouble: Exception | None = None
        for server in self.servers:
            if not server.url:
                continue
            try:
                self.rewriting.loaded = await self._prepare(server, parts)
            except (OSError, ValueError) as error:
                trouble = error
            else:
                trouble = None
                break
        if trouble is not None:
            raise trouble
        self.parts = parts
        await self.tend()

    async def _prepare(self, server: ServerEndpoint, parts: Parts) -> Loaded:
        """Has a server load what is asked of it; who asks for that is answered by it from then on."""
        backend = await asyncio.to_thread(partial(self._backend, server.url, parts))
        room = await asyncio.to_thread(QuickRoom, backend, parts.template, self.settings.sampling.max_tokens)
        server.backends[backend.model] = backend
        server.breaker.succeeded()
        return self._loaded(backend.model, parts, room)

    def _backend(self, url: str, parts: Parts) -> ServerBackend:
        engine = self.settings.engine
        if isinstance(engine, ExternalServers):
            model, variable, adapter = engine.model, engine.key_variable, parts.adapter if engine.load_adapter else None
        else:
            model, variable, adapter = SERVED, KEY_VARIABLE, parts.adapter
        context = engine.context if isinstance(engine, ManagedVllm | ExternalServers) else 0
        plain = ServerSettings(url, model, "server", variable, timeout=PREPARE_SECONDS, retries=0, context=context)
        return ServerBackend(plain, adapter=adapter)

    async def _load_here(self, parts: Parts) -> None:
        engine = self.settings.engine
        rewriter, self._first = self._first, None
        if rewriter is None:
            rewriter = await asyncio.to_thread(load_rewriter, self.settings.plain(), parts, self._device)
        backend: Backend = rewriter.backend
        name = f"{SERVED}-{parts.facts.get('fingerprint', 'local')}"
        room = await asyncio.to_thread(QuickRoom, backend, parts.template, self.settings.sampling.max_tokens)
        most = engine.batch_size if isinstance(engine, InProcess) else AT_ONCE
        self._local = LocalEndpoint(engine.kind, rewriter, name, self._breaker(), most)
        # Those who wait for an older one are answered by it.
        self.rewriting.endpoints = [self._local, *self.rewriting.endpoints]
        self.rewriting.loaded = self._loaded(name, parts, room)
        self._metrics.endpoint_up.labels(engine.kind).set(1)

    def _loaded(self, model: str, parts: Parts, room: QuickRoom) -> Loaded:
        fusion = self.settings.fusion or parts.fusion or RewriteFusion()
        facts: dict[str, Any] = describe(parts) | {"engine": self.engine}
        return Loaded(model, parts.template, room, self.settings.sampling, parts.phrasing, fusion, facts)

    async def _unload(self, model: str) -> None:
        """Takes an old one out, once nobody waits for it any more; unless it has been taken up again by then."""
        for _ in range(int(GRACE * 10)):
            if not self.rewriting.in_use[model]:
                break
            await asyncio.sleep(0.1)
        again = self.rewriting.loaded is not None and self.rewriting.loaded.model == model
        for server in self.servers if not again else ():
            if server.backends.pop(model, None) is not None and server.url:
                await server.unload(model)
        here = [each for each in self.rewriting.endpoints if isinstance(each, LocalEndpoint)]
        for local in here:
            if local is not self._local and local.serves(model):
                self.rewriting.endpoints = [each for each in self.rewriting.endpoints if each is not local]
                local.close()

    def _breaker(self) -> Breaker:
        return Breaker(self.settings.failures)

    async def _start_vllm(self, managed: ManagedVllm) -> None:
        [server] = self.servers
        assert self.parts.model is not None  # only servers elsewhere have none

        async def up(url: str) -> None:
            server.url = url
            await self.tend()

        def down() -> None:
            server.url = ""
            server.backends.clear()
            self._metrics.endpoint_up.labels(server.name).set(0)

        rank, on_cpu = self._room_and_cpu
        self._process = VllmProcess(managed, self.parts.model, rank, up, down, on_cpu)
        self._task = asyncio.create_task(self._process.run())

    async def _stop_vllm(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _needs_restart(self, old: Parts, new: Parts) -> bool:
        """A running vLLM takes another adapter of the same model, if there is room for its rank."""
        if None in (old.adapter, new.adapter) or old.model != new.model:
            return True
        return _fits(new)[0] > self._room_and_cpu[0]

    def _card_stamp(self) -> tuple[int, int, int] | None:
        if self.settings.path is None:
            return None
        folder = Path(self.settings.path).expanduser()
        for path in (folder / CARD_FILE, folder / "rewriter" / CARD_FILE):
            try:
                facts = path.stat()
            except OSError:
                continue
            return facts.st_mtime_ns, facts.st_ino, facts.st_size
        return None


def _fits(parts: Parts) -> tuple[int, bool]:
    """The rank to make room for, and whether vLLM runs on a CPU here."""
    import torch

    from rewrite.backends.vllm_engine import max_lora_rank

    rank = 0 if parts.adapter is None or parts.model is None else max_lora_rank(parts.adapter, parts.model)
    return rank, not torch.cuda.is_available()
