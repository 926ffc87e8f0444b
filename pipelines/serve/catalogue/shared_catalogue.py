"""A gateway's replica of the shared catalogue: it searches in memory, and follows the database.

While the database is away, searches go on; changes and feedback are refused. When it is back, the replica reads the
missed changes by version number.
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

CHECK_SECONDS, STALE_SECONDS = 30.0, 1.0
"""Seconds without a notification after which the connection is checked; the second while the replica is stale."""
MIN_PAUSE, MAX_PAUSE = 0.2, 5.0
"""Seconds between attempts to connect again."""
log = logging.getLogger("rewrite-serve")


class SharedCatalogue(LiveCatalogue):
    """Reads and writes the catalogue in the database."""

    def __init__(
        self, settings: DatabaseSettings, retriever: str, context: Context, metrics: Metrics, phrasing: str
    ) -> None:
        self._database = Database(settings)
        self._replica = Replica(self._database, context)
        super().__init__(self._replica.open(), retriever, metrics, phrasing)

    async def follow(self) -> None:
        """Wait for notifications and read the changes; reconnect, with growing pauses, when the database goes away."""
        pause = MIN_PAUSE
        while True:
            try:
                async with await self._database.listen() as connection:
                    pause = MIN_PAUSE
                    while True:
                        await self.refresh()  # first the changes that were made while not connected
                        quiet = STALE_SECONDS if self.stale else CHECK_SECONDS
                        if not [notice async for notice in connection.notifies(timeout=quiet, stop_after=1)]:
                            await connection.execute("SELECT 1")
            except (psycopg.Error, OSError) as error:
                if not self.stale:
                    log.warning("notifications of changes are interrupted: %s", self._database.safe(error))
                self._set_stale(self.stale or "notifications of changes are interrupted")
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # spread the gateways' attempts
            pause = min(MAX_PAUSE, pause * 2)

    async def refresh(self) -> bool:
        """Read the changes since the replica's version."""
        changed = await self._in_writer(self._reopen)
        if changed:
            self._metrics.reloads.labels("index", "done").inc()
        return changed

    def close(self) -> None:
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
            raise _refusal(error) from error

    def _reopen(self) -> bool:
        """Never raises: a failed read is repeated later, and `stale` has its error until then."""
        try:
            newer = self._replica.refresh()
            changed = newer is not self.current.index
            if changed:
                self._switch(newer, self.current.phrasing)
        except (OSError, ValueError) as error:
            if not self.stale:
                self._metrics.reloads.labels("index", "failed").inc()
                log.warning("the catalogue stays at its version: %s", error)
            self._set_stale(str(error))
            return False
        if self.stale:
            log.info("the catalogue is up to date again")
        self._set_stale("")
        return changed

    def _set_stale(self, reason: str) -> None:
        self.stale = reason
        self._metrics.stale.set(bool(reason))


class SharedFeedback(FeedbackPool):
    """The database's feedback table behind the gateway's route."""

    def __init__(self, settings: DatabaseSettings) -> None:
        super().__init__(Session(Database(settings)))

    def append(self, record: dict[str, Any]) -> None:
        try:
            super().append(record)
        except DatabaseDown as error:
            log.warning("feedback was refused: %s", error)
            raise _refusal(error) from error
        except IndexBusy as error:
            raise Refusal(503, "busy", "the database is busy; try again", 5.0) from error
        except OutOfDisk as error:
            raise Refusal(507, "disk_full", "the database's disk is full; nothing was stored") from error


def _refusal(error: DatabaseDown) -> Refusal:
    if isinstance(error, OutcomeUnknown):
        message = "the database broke off while saving this and may have saved it; repeating it is safe"
    else:
        message = "the database cannot be reached, so nothing can be changed now; searches go on, try again later"
    return Refusal(503, "unavailable", message, 5.0)
