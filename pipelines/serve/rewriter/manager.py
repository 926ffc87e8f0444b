"""Life cycle of the rewriter: start its engine, watch its folder, switch to a newer version, unload the old one."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Literal

from pipelines.rewriters import RewriterParts, find_parts
from pipelines.serve.metrics import Metrics
from pipelines.serve.rewriter.dispatcher import RewriteDispatcher
from pipelines.serve.rewriter.engine import EngineSetup, choose_fusion
from pipelines.serve.rewriter.engine_choice import choose_engine
from pipelines.serve.rewriter.engines import make_engine
from pipelines.serve.rewriter.second_adapter import SecondAdapter
from pipelines.serve.rewriter.settings import RETRY_SECONDS, ManagedVllm, ServedRewriter
from pipelines.system_description import fusion_warning
from retrievers.errors import BadInput
from rewrite.folder import CARD_FILE

MAX_UNLOAD_WAIT = 60.0
"""Seconds to wait for requests that still use an old model."""
log = logging.getLogger("rewrite-serve")


class RewriterManager:
    """Keeps the dispatcher supplied with the newest rewriter."""

    def __init__(
        self, settings: ServedRewriter, metrics: Metrics, device: str | None, second: SecondAdapter | None = None
    ) -> None:
        """Finds and checks the rewriter, and loads a model of this process; nothing else is started yet.

        `second`: an adapter that the managed vLLM has to serve too.
        """
        self.settings = settings = choose_engine(settings, shares_vllm=second is not None)
        parts = find_parts(settings.to_rewriter_settings())
        if second is not None and (not isinstance(settings.engine, ManagedVllm) or parts.model != second.base):
            raise BadInput(
                f"the reranker shares the rewriter's vLLM only if both have the base {second.base}, and this rewriter "
                f"is {parts.model or 'elsewhere'} by {settings.engine.kind}; set `rerank.engine` to transformers"
            )
        self.dispatcher = RewriteDispatcher(settings.concurrency, metrics, choose_fusion(settings, parts))
        self._metrics = metrics
        self._engine = make_engine(EngineSetup(settings, parts, self.dispatcher, metrics, device, second))
        self._warning = ""
        self._stamp = self._failed_stamp = self._card_stamp()
        self._retry_at, self._lock = 0.0, asyncio.Lock()
        self._unloading: set[asyncio.Task[None]] = set()

    @property
    def parts(self) -> RewriterParts:
        return self._engine.parts

    def warn_about_fusion(self, retriever: str) -> None:
        """Warn once if the rewriter's fusion weight was chosen with other retrievers than this one."""
        warning = fusion_warning(self.parts, retriever, "rewriter.fusion") if self.settings.fusion is None else ""
        if warning and warning != self._warning:
            log.warning("%s", warning)
        self._warning = warning

    def describe_use(self) -> str:
        """Describe when the rewriter is asked, and how much the raw ranking counts."""
        fusion, origin = self.dispatcher.fusion, "the config" if self.settings.fusion else "dev"
        if fusion.raw >= 1:
            return f"{origin} left the rewriter out (fusion.raw is 1): only a request with `rewrite: on` asks it"
        limit = fusion.skip_rewrite_above
        queries = "every query" if limit is None else f"queries whose first raw tool scores below {limit:g}"
        origin = "" if self.settings.fusion or self.parts.fusion else ", since it has no card"
        return f"the rewriter is asked about {queries}; the raw ranking counts {fusion.raw:.0%}{origin}"

    def is_ready(self) -> bool:
        """True if some endpoint has the rewriter now."""
        loaded = self.dispatcher.loaded
        return loaded is not None and any(endpoint.serves(loaded.model) for endpoint in self.dispatcher.endpoints)

    @property
    def state(self) -> Literal["starting", "ready", "failed"]:
        """failed: it cannot start and is not tried again."""
        return "ready" if self.is_ready() else "failed" if self.dispatcher.failure else "starting"

    async def start(self) -> None:
        log.info("%s", self.describe_use())
        await self._engine.start()

    async def retry(self) -> None:
        """Load the rewriter at servers that are up and do not have it."""
        await self._engine.retry()

    async def close(self) -> None:
        for task in self._unloading:
            task.cancel()
        await self._engine.close()

    async def refresh(self) -> bool:
        """Load a newer version of the rewriter's folder; one that cannot be loaded is logged and tried again later."""
        async with self._lock:
            stamp = self._card_stamp()
            if stamp in (self._stamp, None) or (stamp == self._failed_stamp and time.monotonic() < self._retry_at):
                return False
            self._failed_stamp, self._retry_at = stamp, time.monotonic() + RETRY_SECONDS
            before = self.dispatcher.loaded
            try:
                parts = await asyncio.to_thread(find_parts, self.settings.to_rewriter_settings())
                await self._engine.load(parts)
            except (OSError, ValueError) as error:
                self._metrics.reloads.labels("rewriter", "failed").inc()
                log.warning("the newer rewriter is not loaded: %s", error)
                return False
            self._stamp, after = stamp, self.dispatcher.loaded
            self.dispatcher.fusion = choose_fusion(self.settings, parts)
        if before is not None and after is not None and before.model != after.model:
            task = asyncio.create_task(self._unload(before.model))
            self._unloading.add(task)
            task.add_done_callback(self._unloading.discard)
        self._metrics.reloads.labels("rewriter", "done").inc()
        log.info("rewriter %s: %s", parts.facts.get("fingerprint"), self.describe_use())
        return True

    async def _unload(self, model: str) -> None:
        """Unload an old model once no request uses it."""
        deadline = time.monotonic() + MAX_UNLOAD_WAIT
        while self.dispatcher.in_use[model] and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        await self._engine.unload(model)

    def _card_stamp(self) -> tuple[int, int, int] | None:
        if self.settings.path is None:
            return None
        folder = Path(self.settings.path).expanduser()
        for path in (folder / CARD_FILE, folder / "rewriter" / CARD_FILE):
            try:
                status = path.stat()
            except OSError:
                continue
            return status.st_mtime_ns, status.st_ino, status.st_size
        return None
