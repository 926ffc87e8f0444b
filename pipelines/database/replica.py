"""The catalogue of a database, held in memory by one process, and changed through it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from pipelines.database import changes
from pipelines.database.catalogue_state import News, State, read_news, settings_of
from pipelines.database.errors import DatabaseDown
from pipelines.database.model_files import fetch_models
from pipelines.database.schema import migrate
from pipelines.database.session import Database, Session
from pipelines.database.vectors import Stored, Vectors
from pipelines.models import cache_folder
from retrievers.errors import IndexBusy
from retrievers.index import Change
from retrievers.index.in_memory import MemoryIndex, kinds_of, make_run
from retrievers.index.segments import make_arrays
from retrievers.index.writer import check_tools, storable
from retrievers.kind import Context
from retrievers.types import Tool, ToolId

log = logging.getLogger("rewrite-serve")


class Replica:
    """Follows the database when it is told to, and changes it. For one thread at a time."""

    def __init__(self, database: Database, context: Context) -> None:
        self.session, self._context = Session(database), context
        self._state: State | None = None
        self._index: MemoryIndex | None = None

    def open(self) -> MemoryIndex:
        """The whole catalogue. Waits a while for a database that is not up yet."""
        database = self.session.database
        deadline, told = time.monotonic() + database.settings.start_seconds, False
        while True:
            try:
                self.session.run(lambda connection: migrate(connection, database.settings.schema))
                return self.newer()
            except (DatabaseDown, IndexBusy) as error:
                if time.monotonic() > deadline:
                    raise
                if not told:
                    log.warning("%s; waiting for it", error)
                told = True
                time.sleep(0.5)

    @property
    def index(self) -> MemoryIndex:
        """The catalogue as it was last read."""
        return self._index or self.newer()

    def newer(self) -> MemoryIndex:
        """The catalogue as it is now; the same object where nothing has changed."""
        before = self._index
        news = self.session.run(lambda connection: read_news(connection, self._state), reading=True)
        if before is not None and news is None:
            return before
        assert news is not None
        vectors = Vectors(news.vectors)
        context = replace(self._context, vectors=vectors.of)
        if before is None or news.whole:
            made = self._whole(news, context)
        else:
            made = before.changed(news.lines, news.gone, news.state.fingerprint, context)
        if vectors.made:
            log.warning("%d vectors were not in the database and were made here", vectors.made)
        self._state, self._index = news.state, made
        return made

    def put(self, tools: Sequence[Tool]) -> Change:
        """Adds or replaces tools; what is new is embedded here, once for all gateways."""
        check_tools(tools)
        tools = [storable(tool) for tool in tools]
        index, manifest = self.index, self.index.manifest
        keys = [changes.document_key(tool, manifest.text) for tool in tools]
        known: Stored = self.session.run(lambda connection: changes.known_vectors(connection, keys), reading=True)
        vectors = Vectors(known)
        if fresh := [tool for tool in tools if index.tools.get(tool.id) != tool]:
            context = replace(self._context, vectors=vectors.of)
            make_arrays(fresh, manifest.text, kinds_of(index.name, index.folder, manifest, context))
        settings = settings_of(manifest)
        return self.session.run(lambda connection: changes.put(connection, tools, settings, vectors.all))

    def remove(self, ids: Sequence[ToolId]) -> Change:
        """Takes tools out."""
        return self.session.run(lambda connection: changes.remove(connection, ids))

    def close(self) -> None:
        """Lets the database go."""
        self.session.close()

    def _whole(self, news: News, context: Context) -> MemoryIndex:
        name, manifest = self.session.database.name, news.state.manifest
        models = fetch_models(self.session, manifest, self._context.cache or cache_folder())
        run = make_run(name, news.lines, manifest.text, kinds_of(name, models, manifest, context))
        return MemoryIndex(name, manifest, news.state.fingerprint, [run], models, self._context)
