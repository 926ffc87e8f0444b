"""The live catalogue: an index folder, its newest snapshot in memory, and those who change it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TypeVar

from pipelines.index.defaults import AUTO, best_retriever
from pipelines.search import ToolSearch
from pipelines.serve.errors import Refusal, overloaded
from pipelines.serve.metrics import Metrics
from retrievers.errors import BadInput, IndexBroken, IndexBusy, IndexMissing, OutOfDisk
from retrievers.index import Change, Index, add, confirm, remove
from retrievers.index import manifest as manifests
from retrievers.types import Tool

MOST_WAITING = 32
"""Changes that may wait for their turn."""
WRITER_SECONDS = 10.0
"""To wait for a writer in another process."""
T = TypeVar("T")
log = logging.getLogger("rewrite-serve")


class Snapshot:
    """One version of the index, ready to search. A request keeps the one it began with."""

    def __init__(self, index: Index, retriever: str, phrasing: str) -> None:
        self.index, self.phrasing = index, phrasing
        self.search = ToolSearch(index, retriever, phrasing=phrasing)

    def warm(self) -> None:
        """Loads whatever the first search would have to wait for."""
        self.search.search(["weather"], 1)

    @cached_property
    def ids(self) -> list[str]:
        """All ids in order, to page through."""
        return sorted(self.index.tools)

    @cached_property
    def labels(self) -> dict[str, tuple[str, str]]:
        """Provider and category of every tool, folded."""
        return {tool.id: (tool.provider.casefold(), tool.category.casefold()) for tool in self.index.tools.values()}


class LiveCatalogue:
    """Reads and writes one index folder. Other places differ in `_add`, `_remove`, `_reopen` and `follow`."""

    def __init__(self, index: Index, retriever: str, metrics: Metrics, phrasing: str) -> None:
        self.retriever = best_retriever(index) if retriever == AUTO else retriever
        self._folder, self._metrics = index.folder, metrics
        self.current = Snapshot(index, self.retriever, phrasing)
        self.current.warm()
        self._seen = self._stamp()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")  # one change at a time
        self._waiting = 0
        self.stale = ""
        """Why a newer version on disk was not taken up."""
        metrics.tools.set(len(self.current.index.tools))

    async def put(self, tools: Sequence[Tool]) -> Change:
        """Adds or replaces tools."""
        return await self._write(lambda: self._add(tools))

    async def delete(self, tool: str) -> Change:
        """Takes a tool out."""
        return await self._write(lambda: self._remove([tool]))

    async def confirm(self, utterance: str, tools: Sequence[str]) -> Change:
        """Has the retrievers that remember find these tools for the next utterance like it."""
        context = self.current.index.context
        return await self._write(lambda: confirm(self._folder, [(utterance, tools)], context, WRITER_SECONDS))

    async def show_as(self, phrasing: str) -> None:
        """Has tools shown in another way, as another rewriter wants it."""
        if phrasing != self.current.phrasing:
            await self._in_turn(lambda: self._take(self.current.index, phrasing))

    async def refresh(self) -> bool:
        """Takes up a newer version from the disk; what cannot be opened is left, and told."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        try:
            changed = await self._in_turn(self._reopen)
        except (OSError, ValueError) as error:
            self._seen, self.stale = stamp, str(error)
            self._metrics.reloads.labels("index", "failed").inc()
            log.warning("the newer index is not taken up: %s", error)
            return False
        if changed:
            self._metrics.reloads.labels("index", "done").inc()
            log.info("index %s with %d tools", self.current.index.fingerprint, len(self.current.index.tools))
        return changed

    async def follow(self) -> None:
        """Hears of changes as they happen; a folder says nothing, and is looked at by `refresh`."""

    def close(self) -> None:
        """Lets a change that is under way end, and takes no other."""
        self._writer.shutdown(wait=True, cancel_futures=True)

    def _add(self, tools: Sequence[Tool]) -> Change:
        return add(self._folder, tools, self.current.index.context, WRITER_SECONDS)

    def _remove(self, ids: Sequence[str]) -> Change:
        return remove(self._folder, ids, self.current.index.context, WRITER_SECONDS)

    async def _write(self, change: Callable[[], Change]) -> Change:
        if self._waiting >= MOST_WAITING:
            raise overloaded("too many changes of the catalogue wait already")

        def both() -> Change:
            done = change()
            self._reopen()
            return done

        try:
            return await self._in_turn(both)
        except IndexBusy as error:
            raise Refusal(503, "busy", "another process is changing the catalogue; try again", 5.0) from error
        except OutOfDisk as error:
            raise Refusal(507, "disk_full", "the server has no room left; nothing was changed") from error
        except BadInput as error:
            raise Refusal(
                422, "invalid", "the catalogue cannot be changed like this; a catalogue is never empty"
            ) from error
        except (IndexMissing, IndexBroken) as error:
            log.error("the index on disk cannot be written: %s", error)
            raise Refusal(503, "unavailable", "the catalogue cannot be written now; searching goes on") from error

    async def _in_turn(self, work: Callable[[], T]) -> T:
        self._waiting += 1
        try:
            # Shielded: a caller who goes away does not leave half a change of ours behind.
            running = asyncio.get_running_loop().run_in_executor(self._writer, work)
            return await asyncio.shield(running)
        finally:
            self._waiting -= 1

    def _reopen(self) -> bool:
        stamp = self._stamp()
        newer = self.current.index.refreshed()
        changed = newer is not self.current.index
        if changed:
            self._take(newer, self.current.phrasing)
        self._seen, self.stale = stamp, ""
        return changed

    def _take(self, index: Index, phrasing: str) -> None:
        fresh = Snapshot(index, self.retriever, phrasing)
        fresh.warm()
        self.current = fresh  # one assignment: whoever reads it has the old one or the new one
        self._metrics.tools.set(len(index.tools))

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            facts = (self._folder / manifests.NAME).stat()
        except OSError:
            return None
        return facts.st_mtime_ns, facts.st_ino, facts.st_size
