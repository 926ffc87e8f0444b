"""A gateway's share of the live catalogue in a database: it searches in memory, and follows.

The database may go away at any moment. Searches do not notice; changes and feedback are refused until it is back, and
what was missed meanwhile is read by version number.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from pipelines.database.errors import DatabaseDown, OutcomeUnknown
from pipelines.database.feedback import FeedbackPool
from pipelines.database.replica import Replica
from pipelines.database.session import Database, Session
from pipelines.database.settings import DatabaseSettings
from pipelines.serve.catalogue.live_index import LiveCatalogue
from pipelines.serve.errors import Refusal
from pipelines.serve.metrics import Metrics
from retrievers.errors import IndexBusy, OutOfDisk
from retrievers.index import Change
from retrievers.kind import Context
from retrievers.types import Tool

QUIET, SOON = 30.0, 1.0
"""Seconds without a word after which the feed's connection is tried, and the catalogue where it could not be read."""
FIRST, LONGEST = 0.2, 5.0
"""Seconds between attempts to hear the feed again."""
log = logging.getLogger("rewrite-serve")


class SharedCatalogue(LiveCatalogue):
    """Reads and writes one catalogue in a database."""

    def __init__(
        self, settings: DatabaseSettings, retriever: str, context: Context, metrics: Metrics, phrasing: str
    ) -> None:
        self._database = Database(settings)
        self._replica = Replica(self._database, context)
        super().__init__(self._replica.open(), retriever, metrics, phrasing)

    async def follow(self) -> None:
        """Hears of changes, and takes them up; connects again, ever more patiently, when the database goes."""
        pause = FIRST
        while True:
            try:
                async with await self._database.listen() as connection:
                    pause = FIRST
                    while True:
                        await self.refresh()  # at first what was said while nobody listened
                        quiet = SOON if self.stale else QUIET
                        if not [each async for each in connection.notifies(timeout=quiet, stop_after=1)]:
                            await connection.execute("SELECT 1")
            except (psycopg.Error, OSError) as error:
                if not self.stale:
                    log.warning("the feed of changes is interrupted: %s", self._database.safe(error))
                self._lag(self.stale or "the feed of changes is interrupted")
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # gateways do not come back all at once
            pause = min(LONGEST, pause * 2)

    async def refresh(self) -> bool:
        """Takes up what has changed since the version at hand."""
        changed = await self._in_turn(self._reopen)
        if changed:
            self._metrics.reloads.labels("index", "done").inc()
        return changed

    def close(self) -> None:
        """Lets a change that is under way end, and the database go."""
        super().close()
        self._replica.close()

    def _add(self, tools: Sequence[Tool]) -> Change:
        return self._replica.put(tools)

    def _remove(self, ids: Sequence[str]) -> Change:
        return self._replica.remove(ids)

    async def _write(self, change: Callable[[], Change]) -> Change:
        try:
            return await super()._write(change)
        except DatabaseDown as error:
            log.warning("a change was refused: %s", error)
            raise refused(error) from error

    def _reopen(self) -> bool:
        """Never fails: what cannot be taken up now is taken up later, and told as `stale` until then."""
        try:
            newer = self._replica.newer()
            changed = newer is not self.current.index
            if changed:
                self._take(newer, self.current.phrasing)
        except (OSError, ValueError) as error:
            if not self.stale:
                self._metrics.reloads.labels("index", "failed").inc()
                log.warning("the catalogue stays at its version: %s", error)
            self._lag(str(error))
            return False
        if self.stale:
            log.info("the catalogue is followed again")
        self._lag("")
        return changed

    def _lag(self, why: str) -> None:
        self.stale = why
        self._metrics.stale.set(bool(why))


class SharedFeedback(FeedbackPool):
    """The pool behind the gateway's route."""

    def __init__(self, settings: DatabaseSettings) -> None:
        super().__init__(Session(Database(settings)))

    def append(self, record: dict[str, Any]) -> None:
        """Keeps one confirmation, or says why not."""
        try:
            super().append(record)
        except DatabaseDown as error:
            log.warning("feedback was refused: %s", error)
            raise refused(error) from error
        except IndexBusy as error:
            raise Refusal(503, "busy", "the database is busy; try again", 5.0) from error
        except OutOfDisk as error:
            raise Refusal(507, "disk_full", "the database has no room left; nothing was kept") from error


def refused(error: DatabaseDown) -> Refusal:
    """What a caller is told who wants to change something while the database is away."""
    if isinstance(error, OutcomeUnknown):
        told = "the database went away while this was being saved and may have saved it; repeat it, which does no harm"
        return Refusal(503, "unavailable", told, 5.0)
    told = "the database cannot be reached, so that nothing can be changed now; searches go on, try again later"
    return Refusal(503, "unavailable", told, 5.0)
