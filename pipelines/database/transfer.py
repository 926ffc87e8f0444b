"""Copy an index folder into the database, and the database into an index folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from psycopg import sql

from pipelines.database import changes
from pipelines.database.catalogue_state import BATCH_ROWS, encode_settings, read_update, read_version
from pipelines.database.feedback import read_pool
from pipelines.database.model_files import fetch_models, store_models
from pipelines.database.schema import last_migration, migrate
from pipelines.database.session import Connection, Database, Session
from pipelines.database.vectors import DatabaseVectors, VectorBytes
from pipelines.models import cache_folder
from retrievers.errors import BadInput
from retrievers.index import Change, Index, build_like
from retrievers.index import tools as tool_lines
from retrievers.index.writer import check_tools
from retrievers.kind import Context
from retrievers.types import ToolId


def push(index: Index, database: Database, whole: bool = False) -> Change:
    """Put an index's tools, vectors and models into the database, in one change.

    `whole`: replace the database's catalogue and its retrievers; otherwise only add and update tools, and require the
    same retrievers.
    """
    check_tools(list(index.tools.values()))  # an older index may hold tools beyond the limits
    with Session(database) as session:
        session.run(lambda connection: migrate(connection, database.settings.schema))
        return session.run(lambda connection: _push(connection, index, whole))


def _push(connection: Connection, index: Index, whole: bool) -> Change:
    # An empty database has no row to lock yet: the advisory lock keeps two pushes apart.
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(current_schema(), 8))")
    before, settings = read_version(connection, lock=True), encode_settings(index.manifest)
    same_settings = before is not None and before.settings == settings
    if before is not None and not same_settings and not whole:
        raise BadInput(
            f"the catalogue in the database has other retrievers, or reads other parts of a tool, than {index.name}; "
            "--replace puts this index in its place"
        )
    version = before.version + 1 if before else 1
    removed: list[ToolId] = []
    if before is not None and not same_settings:
        # Texts and vectors differ now. Without the old versions, every replica reads the whole catalogue.
        for table in ("tools", "embeddings", "versions"):
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
    elif whole:
        rows = connection.execute("SELECT id FROM tools WHERE facts IS NOT NULL").fetchall()
        removed = [tool for (tool,) in rows if tool not in index.tools]
        changes.mark_removed(connection, removed, version)
    change = changes.write_tools(connection, list(index.tools.values()), index.manifest.text, version)
    store_models(connection, index.folder, index.manifest)
    for vectors in _vectors(index):
        changes.store_vectors(connection, vectors)
    change = replace(change, removed=len(removed))
    if before is not None and same_settings and not (change.added or change.updated or removed):
        return replace(change, fingerprint=before.fingerprint)
    return changes.record_version(connection, version, settings, change)


def _vectors(index: Index) -> Iterator[VectorBytes]:
    """Vectors of an index's dense retrievers, in batches."""
    for name in index.names:
        part = index.manifest.retrievers[name]
        model = part.identity.get("weights")
        if part.settings["kind"] != "dense" or not model:
            continue
        offset = 0
        for block in index.blocks(name):
            rows = [row for row, alive in enumerate(block.live) if alive]
            for start in range(0, len(rows), BATCH_ROWS):
                batch = rows[start : start + BATCH_ROWS]
                tools = [index.tools[index.rows.ids[offset + row]] for row in batch]
                keys = [changes.document_key(tool, index.manifest.text) for tool in tools]
                data = [vector.tobytes() for vector in block.arrays["vectors"][batch].astype("<f4")]
                yield {(model, key): vector for key, vector in zip(keys, data, strict=True)}
            offset += len(block.live)


def pull(database: Database, folder: Path, context: Context, wait: float) -> Change:
    """Write the database's catalogue as an index folder, with the stored vectors."""
    with Session(database) as session:
        update = session.run(lambda connection: read_update(connection, None), reading=True)
        assert update is not None
        manifest = update.version.manifest
        models = fetch_models(session, manifest, context.cache or cache_folder())
    tools = [tool_lines.decode(line) for line in update.lines]
    context = replace(context, vectors=DatabaseVectors(update.vectors).of_model)
    return build_like(folder, tools, manifest, models, context, wait)


def pull_feedback(database: Database, path: Path) -> int:
    """Write all feedback as lines of JSON; returns their number."""
    with Session(database) as session:
        records = session.run(read_pool, reading=True)
    path.write_text("".join(f"{record}\n" for record in records), encoding="utf-8")
    return len(records)


def describe(database: Database) -> str:
    """One sentence about the catalogue in the database."""

    def look(connection: Connection) -> str:
        version = read_version(connection) if last_migration(connection, database.settings.schema) else None
        if version is None:
            return "no catalogue yet"
        tools = changes.count_tools(connection, "facts IS NOT NULL")
        names = ", ".join(version.manifest.retrievers)
        return f"{tools} tools, {names}, version {version.version}, fingerprint {version.fingerprint}"

    with Session(database) as session:
        return session.run(look, reading=True)
