"""All parts of a server put together, and what goes on beside its requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pipelines.context import make_context
from pipelines.index.defaults import default_threshold
from pipelines.rewriters import PHRASING
from pipelines.serve import tracing
from pipelines.serve.catalogue.admission import Admission
from pipelines.serve.catalogue.batcher import Batcher
from pipelines.serve.catalogue.opening import open_catalogue, open_feedback
from pipelines.serve.keys import Gate
from pipelines.serve.metrics import Metrics
from pipelines.serve.rewriter.engines import RETRY, Models
from pipelines.serve.rewriter.rewriting import Rewriting
from pipelines.serve.service import SearchService
from pipelines.serve.settings import ServeConfig
from pipelines.system_description import retriever_label

log = logging.getLogger("rewrite-serve")


class Gateway:
    """Opens the index and finds the rewriter; a config that cannot work fails here, before anybody listens."""

    def __init__(self, config: ServeConfig, device: str | None = None) -> None:
        if config.traces:
            tracing.start()
        self.config, self.metrics = config, Metrics()
        self.gate = Gate(config.keys, config.anonymous, config.limits.anonymous_per_minute)
        self.batcher = Batcher(config.workers, config.batch, config.limits.waiting)
        self.models: Models | None = None
        phrasing = PHRASING
        if config.rewriter is not None:
            served = config.rewriter
            rewriting = Rewriting(served.concurrency, served.cache, self.metrics)
            self.models = Models(served, rewriting, self.metrics, device)
            phrasing = self.models.parts.phrasing
        self.catalogue = open_catalogue(config, make_context(device, engine=config.engine), self.metrics, phrasing)
        self.admission = Admission(self.catalogue, config.trust, config.held)
        self.service = SearchService(
            self.catalogue, self.batcher, self.metrics, config.deadline_ms, config.longest_deadline_ms
        )
        self.service.rewriting = self.models.rewriting if self.models else None
        self.service.trust, said = config.trust, config.least_probability
        self.service.least_probability = default_threshold(config.index) if said is None else said
        self.feedback = open_feedback(config)
        self.draining = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts the rewriter and the watching."""
        if self.models is not None:
            await self.models.start()
            self._tasks.append(asyncio.create_task(self._every(RETRY, self._tend)))
        self._tasks.append(asyncio.create_task(self.catalogue.follow()))
        if self.config.watch_seconds:
            self._tasks.append(asyncio.create_task(self._every(self.config.watch_seconds, self.refresh)))
        if self.config.mcp:
            from pipelines.serve.catalogue.mcp_sync import Follower

            for source in self.config.mcp:
                follower = Follower(source, self.config.imports, self.admission.put, self.admission)
                self._tasks.append(asyncio.create_task(follower.run()))

    async def stop(self) -> None:
        """Ends everything that was started; a change of the catalogue that is under way ends first."""
        self.draining = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.models is not None:
            await self.models.close()
        self.batcher.close()
        await asyncio.to_thread(self.catalogue.close)

    async def refresh(self) -> None:
        """Takes up newer versions of index and rewriter, if there are any."""
        await self.catalogue.refresh()
        if self.models is not None and await self.models.refresh():
            await self.catalogue.show_as(self.models.parts.phrasing)
        self._mind()

    async def _tend(self) -> None:
        if self.models is not None:
            await self.models.tend()
            self._mind()

    def _mind(self) -> None:
        """Index and rewriter may both be exchanged while they serve."""
        if self.models is not None:
            self.models.mind(retriever_label(self.catalogue.current.index, self.catalogue.retriever))

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception:  # the watch goes on, whatever it saw
                log.exception("watching failed")
            await asyncio.sleep(seconds)
