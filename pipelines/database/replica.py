"""Replica of the database's catalogue in the memory of one process; changes go through it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from pipelines.database import changes
from pipelines.database.catalogue_state import CatalogueUpdate, CatalogueVersion, encode_settings, read_update
from pipelines.database.errors import DatabaseDown
from pipelines.database.model_files import fetch_models
from pipelines.database.schema import migrate
from pipelines.database.session import Database, Session
from pipelines.database.vectors import DatabaseVectors
from pipelines.models import cache_folder
from retrievers.errors import IndexBusy
from retrievers.index import Change
from retrievers.index.in_memory import MemoryIndex, make_memory_segment
from retrievers.index.reader import open_kinds
from retrievers.index.segments import make_arrays
from retrievers.index.writer import as_stored, check_tools
from retrievers.kind import Context
from retrievers.types import Tool, ToolId

log = logging.getLogger("rewrite-serve")


class Replica:
    """Reads and changes the database's catalogue. Not thread-safe."""

    def __init__(self, database: Database, context: Context) -> None:
        self.session, self._context = Session(database), context
        self._version: CatalogueVersion | None = None
        self._index: MemoryIndex | None = None

    def open(self) -> MemoryIndex:
        """Read the whole catalogue; waits up to `start_seconds` for the database."""
        database = self.session.database
        deadline, warned = time.monotonic() + database.settings.start_seconds, False
        while True:
            try:
                self.session.run(lambda connection: migrate(connection, database.settings.schema))
                return self.refresh()
            except (DatabaseDown, IndexBusy) as error:
                if time.monotonic() > deadline:
                    raise
                if not warned:
                    log.warning("%s; waiting for it", error)
                warned = True
                time.sleep(0.5)

    def refresh(self) -> MemoryIndex:
        """The catalogue as it is now; the same object if nothing has changed."""
        before = self._index
        update = self.session.run(lambda connection: read_update(connection, self._version), reading=True)
        if before is not None and update is None:
            return before
        assert update is not None
        vectors = DatabaseVectors(update.vectors)
        context = replace(self._context, vectors=vectors.of_model)
        if before is None or update.whole:
            index = self._build(update, context)
        else:
            index = before.with_changes(update.lines, update.removed, update.version.fingerprint, context)
        if vectors.computed:
            log.warning("%d vectors were not in the database and were computed here", vectors.computed)
        self._version, self._index = update.version, index
        return index

    def put(self, tools: Sequence[Tool]) -> Change:
        """Add or replace tools; new texts are embedded here, once for all gateways."""
        check_tools(tools)
        tools = [as_stored(tool) for tool in tools]
        index = self._index or self.refresh()
        manifest = index.manifest
        keys = [changes.document_key(tool, manifest.text) for tool in tools]
        known = self.session.run(lambda connection: changes.read_vectors(connection, keys), reading=True)
        vectors = DatabaseVectors(known)
        if changed := [tool for tool in tools if index.tools.get(tool.id) != tool]:
            context = replace(self._context, vectors=vectors.of_model)
            make_arrays(changed, manifest.text, open_kinds(index.name, index.folder, manifest, context))
        settings = encode_settings(manifest)
        return self.session.run(lambda connection: changes.put_tools(connection, tools, settings, vectors.all))

    def remove(self, ids: Sequence[ToolId]) -> Change:
        return self.session.run(lambda connection: changes.remove_tools(connection, ids))

    def close(self) -> None:
        self.session.close()

    def _build(self, update: CatalogueUpdate, context: Context) -> MemoryIndex:
        name, manifest = self.session.database.name, update.version.manifest
        models = fetch_models(self.session, manifest, self._context.cache or cache_folder())
        segment = make_memory_segment(name, update.lines, manifest.text, open_kinds(name, models, manifest, context))
        return MemoryIndex(name, manifest, update.version.fingerprint, [segment], models, self._context)
