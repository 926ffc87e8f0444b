"""The live catalogue: an index folder, its newest snapshot in memory, and changes to it."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import TypeVar

from pipelines.index.defaults import choose_retriever
from pipelines.search import ToolSearch
from pipelines.serve.bounds.fairness import FairSlots, current_caller
from pipelines.serve.errors import Refusal, overloaded
from pipelines.serve.metrics import Metrics
from retrievers.dense.encoder import release_pages
from retrievers.errors import BadInput, IndexBroken, IndexBusy, IndexMissing, OutOfDisk, ReadOnlyDisk
from retrievers.index import Change, Index, add, confirm, remove
from retrievers.index import manifest as manifests
from retrievers.types import Tool

MAX_WAITING = 32
"""Changes that may wait, a quarter of them of one caller while others are active."""
WRITER_SECONDS = 10.0
"""Seconds to wait for a writer in another process."""
KEPT_SECONDS, MAX_KEPT = 2.0, 2
"""Old snapshots are kept for this time, at most 2 of them, so that most requests on them end before: to free one takes
up to 0.3 s, in the writer's thread. Longer requests, such as those that wait for a rewriter, free theirs on the event
loop, which stands still meanwhile."""
T = TypeVar("T")
log = logging.getLogger("rewrite-serve")


class Snapshot:
    """One version of the index, ready to search. A request uses the same one to its end."""

    def __init__(self, index: Index, retriever: str, phrasing: str) -> None:
        self.index, self.phrasing = index, phrasing
        self.search = ToolSearch(index, retriever, phrasing=phrasing)
        self.search.search(["weather"], 1)  # loads everything that the first search needs
        self.tool_texts: dict[str, str] = {}
        """Tools as JSON, by id, of the pages that were listed."""

    @cached_property
    def ids(self) -> list[str]:
        """All ids, sorted."""
        return sorted(self.index.tools)

    @cached_property
    def labels(self) -> dict[str, tuple[str, str]]:
        """Provider and category of every tool, case-folded."""
        return {tool.id: (tool.provider.casefold(), tool.category.casefold()) for tool in self.index.tools.values()}


class LiveCatalogue:
    """Reads and writes one index folder. Subclasses override `_add`, `_remove`, `_reopen` and `follow`."""

    def __init__(self, index: Index, retriever: str, metrics: Metrics, phrasing: str) -> None:
        self.retriever = choose_retriever(index, retriever)
        self._folder, self._metrics = index.folder, metrics
        self.current = Snapshot(index, self.retriever, phrasing)
        self._seen = self._stamp()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")  # one change at a time
        self._has_changed = False
        self._old: deque[tuple[float, Snapshot]] = deque()
        """With the times of their ends; only the writer's thread adds and removes some."""
        self._turns = FairSlots(1)
        """Of callers that change the catalogue."""
        self.stale = ""
        """Why a newer version was not loaded."""
        metrics.tools.set(len(self.current.index.tools))

    async def put(self, tools: Sequence[Tool]) -> Change:
        """Add or replace tools."""
        return await self._write(lambda: self._add(tools))

    async def delete(self, tool: str) -> Change:
        return await self._write(lambda: self._remove([tool]))

    async def confirm(self, utterance: str, tools: Sequence[str]) -> Change:
        """Let retrievers that learn from feedback return these tools for similar utterances."""
        context = self.current.index.context
        return await self._write(lambda: confirm(self._folder, [(utterance, tools)], context, WRITER_SECONDS))

    async def set_phrasing(self, phrasing: str) -> None:
        """Show tools to the rewriter in another phrasing."""
        if phrasing != self.current.phrasing:
            await self._in_writer(lambda: self._switch(self.current.index, phrasing))

    async def refresh(self) -> bool:
        """Load a newer version from disk; one that cannot be opened is logged, and the old one stays."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        try:
            changed = await self._in_writer(self._reopen)
        except (OSError, ValueError) as error:
            self._seen, self.stale = stamp, str(error)
            self._metrics.reloads.labels("index", "failed").inc()
            log.warning("the newer index is not loaded: %s", error)
            return False
        if changed:
            self._metrics.reloads.labels("index", "done").inc()
            log.info("index %s with %d tools", self.current.index.fingerprint, len(self.current.index.tools))
        return changed

    async def follow(self) -> None:
        """Wait for notifications of changes; a folder sends none, `refresh` looks at it."""

    def close(self) -> None:
        """Finish the running change, and take no other."""
        self._writer.shutdown(wait=True, cancel_futures=True)

    def _add(self, tools: Sequence[Tool]) -> Change:
        return add(self._folder, tools, self.current.index.context, WRITER_SECONDS)

    def _remove(self, ids: Sequence[str]) -> Change:
        return remove(self._folder, ids, self.current.index.context, WRITER_SECONDS)

    async def _write(self, change: Callable[[], Change]) -> Change:
        caller, turns = current_caller(), self._turns
        if turns.num_waiting(caller) >= turns.active.share(caller, MAX_WAITING):
            raise overloaded("too many changes of the catalogue are waiting")

        def write_and_reopen() -> Change:
            if self._has_changed or not gc.get_freeze_count():
                outcome = change()
                self._reopen()
                return outcome
            gc.disable()  # the first change loads encoders; a collection among them stops all threads for 0.3 s
            try:
                outcome = change()
                self._reopen()
                self._has_changed = True
                gc.freeze()
                return outcome
            finally:
                gc.enable()

        await turns.enter(caller, None)
        began = time.monotonic()
        try:
            return await self._in_writer(write_and_reopen)
        except IndexBusy as error:
            raise Refusal(503, "busy", "another process is changing the catalogue; try again", 5.0) from error
        except OutOfDisk as error:
            raise Refusal(507, "disk_full", "the server's disk is full; nothing was changed") from error
        except ReadOnlyDisk as error:
            log.error("%s", error)
            message = "the server cannot write its catalogue: the disk is read-only; searches still work"
            raise Refusal(503, "read_only", message) from error
        except BadInput as error:
            message = "the catalogue does not allow this change; it must never be empty"
            raise Refusal(422, "invalid", message) from error
        except (IndexMissing, IndexBroken) as error:
            log.error("the index on disk cannot be written: %s", error)
            message = "the catalogue cannot be written now; searches still work"
            raise Refusal(503, "unavailable", message) from error
        finally:
            turns.leave_after_rest(caller, 1, time.monotonic() - began)

    async def _in_writer(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            # Shielded: if the caller leaves, the change is still completed.
            return await asyncio.shield(loop.run_in_executor(self._writer, work))
        finally:
            loop.call_later(KEPT_SECONDS, self._free_old)

    def _free_old(self) -> None:
        """Free old snapshots in the writer's thread; if a busy loop's timer came too early, a little later."""
        with suppress(IndexError):  # there are none any more
            early = KEPT_SECONDS - (time.monotonic() - self._old[0][0])
            if early > 0:
                asyncio.get_running_loop().call_later(early + 0.01, self._free_old)
                return
        with suppress(RuntimeError):  # the server has stopped
            self._writer.submit(self._drop_old)

    def _drop_old(self) -> None:
        while self._old and (len(self._old) > MAX_KEPT or time.monotonic() - self._old[0][0] >= KEPT_SECONDS):
            self._old.popleft()

    def _reopen(self) -> bool:
        stamp = self._stamp()
        newer = self.current.index.latest()
        changed = newer is not self.current.index
        if changed:
            self._switch(newer, self.current.phrasing)
        self._seen, self.stale = stamp, ""
        return changed

    def _switch(self, index: Index, phrasing: str) -> None:
        old, self.current = self.current, Snapshot(index, self.retriever, phrasing)  # readers need no lock
        self._old.append((time.monotonic(), old))
        release_pages(index.context)  # new tools were embedded; memory stays flat however many new words they have
        self._drop_old()
        self._metrics.tools.set(len(index.tools))

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = (self._folder / manifests.NAME).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size
