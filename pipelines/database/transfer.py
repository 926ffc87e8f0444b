"""An index folder into the database, and the database into an index folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from psycopg import sql

from pipelines.database import changes
from pipelines.database.catalogue_state import AT_ONCE, read_news, read_state, settings_of
from pipelines.database.feedback import read_pool
from pipelines.database.model_files import fetch_models, store_models
from pipelines.database.schema import migrate, reached
from pipelines.database.session import Connection, Database, Session
from pipelines.database.vectors import Stored, Vectors
from pipelines.models import cache_folder
from retrievers.errors import BadInput
from retrievers.index import Change, Index, seal
from retrievers.index import tools as tool_lines
from retrievers.kind import Context
from retrievers.types import ToolId


def push(index: Index, database: Database, whole: bool = False) -> Change:
    """Puts an index's tools, vectors and models into the database, in one change that gateways take up.

    `whole`: the database holds afterwards what the folder holds, with its retrievers; otherwise tools are added and
    updated only, and the retrievers must be the same.
    """
    session = Session(database)
    try:
        session.run(lambda connection: migrate(connection, database.settings.schema))
        return session.run(lambda connection: _push(connection, index, whole))
    finally:
        session.close()


def _push(connection: Connection, index: Index, whole: bool) -> Change:
    # The row may not be there yet, and cannot be locked then: two who fill an empty database come one by one.
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(current_schema(), 8))")
    before, settings = read_state(connection, lock=True), settings_of(index.manifest)
    if before is not None and before.settings != settings and not whole:
        raise BadInput(
            f"the catalogue in the database has other retrievers, or reads other parts of a tool, than {index.name}; "
            "--replace puts this index in its place"
        )
    version = before.version + 1 if before else 1
    gone: list[ToolId] = []
    if before is not None and before.settings != settings:
        # Texts and vectors are others now. Nobody can follow from an older version: everybody reads all of it.
        for table in ("tools", "embeddings", "versions"):
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
    elif whole:
        held = connection.execute("SELECT id FROM tools WHERE facts IS NOT NULL").fetchall()
        gone = [tool for (tool,) in held if tool not in index.tools]
        changes.bury(connection, gone, version)
    change = changes.write_tools(connection, list(index.tools.values()), index.manifest.text, version)
    store_models(connection, index.folder, index.manifest)
    for vectors in _vectors(index):
        changes.store_vectors(connection, vectors)
    change = replace(change, removed=len(gone))
    if before is not None and before.settings == settings and not (change.added or change.updated or gone):
        return replace(change, fingerprint=before.fingerprint)
    return changes.seal(connection, version, settings, change)


def _vectors(index: Index) -> Iterator[Stored]:
    """The vectors of an index's tools, portion by portion: they were made when it was built."""
    text = index.manifest.text
    for part, blocks in ((index.manifest.retrievers[name], index.blocks(name)) for name in index.names):
        model = part.identity.get("weights")
        if part.settings["kind"] != "dense" or not model:
            continue
        offset = 0
        for block in blocks:
            rows = [row for row, alive in enumerate(block.live) if alive]
            for start in range(0, len(rows), AT_ONCE):
                some = rows[start : start + AT_ONCE]
                keys = [changes.document_key(index.tools[index.rows.ids[offset + row]], text) for row in some]
                data = [vector.tobytes() for vector in block.arrays["vectors"][some].astype("<f4")]
                yield {(model, key): vector for key, vector in zip(keys, data, strict=True)}
            offset += len(block.live)


def pull(database: Database, folder: Path, context: Context, wait: float) -> Change:
    """The database's catalogue as a sealed index folder; nothing is embedded that the database holds."""
    session = Session(database)
    try:
        news = session.run(lambda connection: read_news(connection, None), reading=True)
        assert news is not None
        manifest = news.state.manifest
        models = fetch_models(session, manifest, context.cache or cache_folder())
    finally:
        session.close()
    tools = tool_lines.decode_lines("\n".join(news.lines).encode())
    return seal(folder, tools, manifest, models, replace(context, vectors=Vectors(news.vectors).of), wait)


def pull_feedback(database: Database, path: Path) -> int:
    """The feedback pool as lines of JSON."""
    session = Session(database)
    try:
        records = session.run(read_pool, reading=True)
    finally:
        session.close()
    path.write_text("".join(f"{record}\n" for record in records), encoding="utf-8")
    return len(records)


def describe(database: Database) -> str:
    """What the database holds, in a sentence."""

    def look(connection: Connection) -> str:
        if not reached(connection, database.settings.schema):
            return "no catalogue yet"
        state = read_state(connection)
        if state is None:
            return "no catalogue yet"
        tools = changes.count(connection, "facts IS NOT NULL")
        names = ", ".join(state.manifest.retrievers)
        return f"{tools} tools, {names}, version {state.version}, fingerprint {state.fingerprint}"

    session = Session(database)
    try:
        return session.run(look, reading=True)
    finally:
        session.close()
