"""The gateway: all parts of a server, and its background tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.context import make_context
from pipelines.index.defaults import index_folder
from pipelines.rewriters import PHRASING
from pipelines.serve import tracing
from pipelines.serve.bounds.fairness import FairSlots
from pipelines.serve.calls.service import CallService
from pipelines.serve.catalogue.admission import Admission
from pipelines.serve.catalogue.feedback import FeedbackLog, FeedbackStore
from pipelines.serve.catalogue.live_index import LiveCatalogue
from pipelines.serve.catalogue.reading_process import CatalogueReader
from pipelines.serve.keys import Gate
from pipelines.serve.metrics import Metrics
from pipelines.serve.reranking import ServedReranker
from pipelines.serve.rewriter.settings import RETRY_SECONDS
from pipelines.serve.service import SearchService
from pipelines.serve.settings import ServeConfig
from pipelines.system_description import retriever_label
from retrievers.errors import BadInput, IndexBusy
from retrievers.index import Index
from retrievers.kind import Context
from rewrite.errors import RewriteError

if TYPE_CHECKING:
    from pipelines.serve.rewriter.manager import RewriterManager

USES_SECONDS = 2.0
"""Seconds between two looks at the logs of feedback and calls, for what is used."""
log = logging.getLogger("rewrite-serve")


class Gateway:
    """Opens the index and finds the rewriter; a config that cannot work fails here, before the server listens."""

    def __init__(self, config: ServeConfig, device: str | None = None) -> None:
        if config.traces:
            tracing.start()
        self.config, self.metrics = config, Metrics()
        self.gate = Gate(config.keys, config.anonymous, config.limits.anonymous_per_minute, config.access)
        self.reranker = ServedReranker(config.rerank, self.metrics, device) if config.rerank else None
        second = self.reranker.second if self.reranker else None
        if second is not None and config.rewriter is None:
            raise BadInput("without a rewriter there is no vLLM to share; set `rerank.engine` to transformers")
        self.rewriter: RewriterManager | None = None
        if config.rewriter:
            from pipelines.serve.rewriter.manager import RewriterManager

            self.rewriter = RewriterManager(config.rewriter, self.metrics, device, second)
        phrasing = self.rewriter.parts.phrasing if self.rewriter else PHRASING
        self.catalogue = _open_catalogue(config, make_context(device, engine=config.engine), self.metrics, phrasing)
        search = self.catalogue.current.search
        if self.reranker is None or not self.reranker.is_calibrated(search):
            search.check_min_score(config.min_score, config.min_probability)
        self.admission = Admission(
            self.catalogue, config.trust, config.quarantine, [source.name for source in config.mcp]
        )
        dispatcher = self.rewriter.dispatcher if self.rewriter else None
        self.service = SearchService(config, self.catalogue, self.metrics, dispatcher, self.reranker)
        self.calls = CallService(config, self.catalogue, self.admission, self.metrics)
        self.feedback = _open_feedback(config)
        self.draining = False
        self.failure = ""
        """Why the server is not ready although it runs; empty: it is."""
        self.reading = FairSlots(1)
        """Turns of callers whose catalogues are read, which takes seconds for a large one."""
        self.reader = CatalogueReader()
        self._tasks: list[asyncio.Task[None]] = []
        self._uses_error = ""

    async def start(self) -> None:
        """Start the rewriter and the background tasks."""
        if self.rewriter is not None:
            await self.rewriter.start()
            self._tasks.append(asyncio.create_task(self._every(RETRY_SECONDS, self._retry_rewriter)))
        self._tasks.append(asyncio.create_task(self.catalogue.follow()))
        if self.config.watch_seconds:
            self._tasks.append(asyncio.create_task(self._every(self.config.watch_seconds, self.refresh)))
        if self.service.trust.limits:
            self._tasks.append(asyncio.create_task(self._every(USES_SECONDS, self._read_uses)))
        self._tasks += [asyncio.create_task(upstream.run()) for upstream in self.calls.upstreams.values()]

    async def stop(self) -> None:
        """Stop everything that was started; a running change of the catalogue is completed first."""
        self.draining = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.rewriter is not None:
            await self.rewriter.close()
        await self.calls.close()
        self.service.close()
        if self.reranker is not None:
            self.reranker.close()
        await asyncio.to_thread(self.catalogue.close)
        await asyncio.to_thread(self.reader.close)

    async def refresh(self) -> None:
        """Load newer versions of index and rewriter."""
        await self.catalogue.refresh()
        if self.rewriter is not None:
            if await self.rewriter.refresh():
                await self.catalogue.set_phrasing(self.rewriter.parts.phrasing)
            self._check_fusion(self.rewriter)

    async def _read_uses(self) -> None:
        try:
            await asyncio.to_thread(self.service.trust.read_uses, self.feedback)
            self._uses_error = ""
        except (ConnectionError, IndexBusy) as error:  # the database is away; the next time reads what was missed
            if str(error) != self._uses_error:
                log.warning("uses of tools cannot be read: %s", error)
            self._uses_error = str(error)

    async def _retry_rewriter(self) -> None:
        assert self.rewriter is not None
        await self.rewriter.retry()
        self._check_fusion(self.rewriter)

    def _check_fusion(self, rewriter: RewriterManager) -> None:
        """Runs again and again, because index and rewriter may be replaced while they serve."""
        rewriter.warn_about_fusion(retriever_label(self.catalogue.current.index, self.catalogue.retriever))

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception:  # the task must survive any error
                log.exception("a background task failed")
            await asyncio.sleep(seconds)


def _open_catalogue(config: ServeConfig, context: Context, metrics: Metrics, phrasing: str) -> LiveCatalogue:
    if config.database is None:
        index = Index(index_folder(config.index), context)
        return LiveCatalogue(index, config.retriever, metrics, phrasing)
    try:
        from pipelines.serve.catalogue.shared_catalogue import SharedCatalogue
    except ModuleNotFoundError as error:
        raise RewriteError(f"a shared catalogue needs {error.name}; run `pip install 'toolrewrite[shared]'`") from error
    return SharedCatalogue(config.database, config.retriever, context, metrics, phrasing)


def _open_feedback(config: ServeConfig) -> FeedbackStore | None:
    """The store for feedback; None refuses feedback."""
    if config.feedback:
        return FeedbackLog(Path(config.feedback).expanduser())
    if config.database is None:
        return None
    from pipelines.serve.catalogue.shared_catalogue import SharedFeedback

    return SharedFeedback(config.database)
