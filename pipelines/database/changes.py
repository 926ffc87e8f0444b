"""Change the catalogue in the database.

Every change gets the next version number, from the one row of `catalogue`, which stays locked until the commit. So
changes are committed in the order of their numbers, and a replica at version n has seen everything up to n. (Numbers
from a sequence become visible out of order: a long transaction 5 can commit after 6, and a replica that reads
"everything after 6" would miss 5.) Changes are rare and short; vectors are computed before the lock is taken.

NOTIFY wakes the other gateways and carries only the version number: its payload is limited and reaches only open
connections. Replicas always read changes by version number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import LiteralString

from pipelines.database.catalogue_state import BATCH_ROWS, CatalogueVersion, require_version
from pipelines.database.session import Connection
from pipelines.database.vectors import VectorBytes
from retrievers.dense.embeddings import text_key
from retrievers.errors import BadInput, IndexBusy
from retrievers.index import Change
from retrievers.index import tools as tool_lines
from retrievers.text import clean, document
from retrievers.types import Tool, ToolId

MAX_REMOVED = 10_000
"""Rows of removed tools to keep for replicas that were disconnected; never fewer than there are tools."""
_UPSERT = """
INSERT INTO tools (id, facts, document, version)
SELECT id, facts, document, %s FROM unnest(%s::text[], %s::text[], %s::bytea[]) AS given (id, facts, document)
ON CONFLICT (id) DO UPDATE SET facts = excluded.facts, document = excluded.document, version = excluded.version
"""


def put_tools(connection: Connection, tools: Sequence[Tool], settings: str, vectors: VectorBytes) -> Change:
    """Add or replace tools, with the vectors computed for them under these settings."""
    current = require_version(connection, lock=True)
    if current.settings != settings:
        raise IndexBusy("the retrievers of the catalogue were changed meanwhile; try again")
    change = write_tools(connection, tools, current.manifest.text, current.version + 1)
    if not change.added and not change.updated:
        return replace(change, fingerprint=current.fingerprint)
    store_vectors(connection, vectors)
    return record_version(connection, current.version + 1, settings, change)


def remove_tools(connection: Connection, ids: Sequence[ToolId]) -> Change:
    """Remove tools; an unknown id is refused, and then nothing is removed."""
    current = require_version(connection, lock=True)
    wanted = sorted(set(ids))
    query = "SELECT id FROM tools WHERE id = ANY(%s) AND facts IS NOT NULL"
    known = {tool for (tool,) in connection.execute(query, [wanted])}
    if unknown := [tool for tool in wanted if tool not in known]:
        raise BadInput(f"the catalogue has no tool {unknown[0]!r}")
    if count_tools(connection, "facts IS NOT NULL") == len(wanted):
        raise BadInput(f"removing all {len(wanted)} tools would leave the catalogue empty")
    mark_removed(connection, wanted, current.version + 1)
    return record_version(connection, current.version + 1, current.settings, Change("", removed=len(wanted)))


def write_tools(connection: Connection, tools: Sequence[Tool], text: tuple[str, ...], version: int) -> Change:
    """Write the tools that are new or changed. The caller holds the lock."""
    added = updated = 0
    for start in range(0, len(tools), BATCH_ROWS):
        batch = tools[start : start + BATCH_ROWS]
        lines = {tool.id: tool_lines.encode([tool]).decode().rstrip("\n") for tool in batch}
        query = "SELECT id, facts, document FROM tools WHERE id = ANY(%s) AND facts IS NOT NULL"
        known = {row[0]: row[1:] for row in connection.execute(query, [list(lines)], binary=True)}
        changed = [tool for tool in batch if known.get(tool.id, ("",))[0] != lines[tool.id]]
        ids, keys = [tool.id for tool in changed], [document_key(tool, text) for tool in changed]
        connection.execute(_UPSERT, [version, ids, [lines[tool] for tool in ids], keys])
        _delete_unused_vectors(connection, [known[tool][1] for tool in ids if tool in known])
        updated += sum(tool in known for tool in ids)
        added += sum(tool not in known for tool in ids)
    return Change("", added, updated, len(tools) - added - updated)


def document_key(tool: Tool, text: tuple[str, ...]) -> bytes:
    """The key under which a tool's vectors are stored."""
    return text_key(clean(document(tool, text)))


def mark_removed(connection: Connection, ids: Sequence[ToolId], version: int) -> None:
    """Replace tools by a row that says they are removed. The caller holds the lock."""
    for start in range(0, len(ids), BATCH_ROWS):
        batch = list(ids[start : start + BATCH_ROWS])
        query = "SELECT document FROM tools WHERE id = ANY(%s)"
        documents = [key for (key,) in connection.execute(query, [batch], binary=True)]
        connection.execute(
            "UPDATE tools SET facts = NULL, document = NULL, version = %s WHERE id = ANY(%s)", [version, batch]
        )
        _delete_unused_vectors(connection, documents)


def read_vectors(connection: Connection, documents: Sequence[bytes]) -> VectorBytes:
    """Stored vectors of documents."""
    query = "SELECT model, document, vector FROM embeddings WHERE document = ANY(%s)"
    rows = connection.execute(query, [list(documents)], binary=True)
    return {(model, key): vector for model, key, vector in rows}


def store_vectors(connection: Connection, vectors: VectorBytes) -> None:
    """Store vectors; existing ones stay."""
    rows = list(vectors.items())
    for start in range(0, len(rows), BATCH_ROWS):
        batch = rows[start : start + BATCH_ROWS]
        connection.execute(
            "INSERT INTO embeddings (model, document, vector) "
            "SELECT * FROM unnest(%s::text[], %s::bytea[], %s::bytea[]) ON CONFLICT DO NOTHING",
            [[model for (model, _), _ in batch], [key for (_, key), _ in batch], [vector for _, vector in batch]],
        )


def record_version(connection: Connection, version: int, settings: str, change: Change) -> Change:
    """Last step of a change: record its version and stamp, and notify the other gateways on commit."""
    _prune_removed(connection)
    row = connection.execute(
        "INSERT INTO versions (version, added, updated, removed) VALUES (%s, %s, %s, %s) RETURNING stamp::text",
        [version, change.added, change.updated, change.removed],
    ).fetchone()
    connection.execute(
        "INSERT INTO catalogue (version, settings) VALUES (%s, %s) "
        "ON CONFLICT (one) DO UPDATE SET version = excluded.version, settings = excluded.settings",
        [version, settings],
    )
    connection.execute("SELECT pg_notify(current_schema(), %s)", [str(version)])
    assert row is not None
    return replace(change, fingerprint=CatalogueVersion(version, str(row[0]), settings).fingerprint)


def count_tools(connection: Connection, condition: LiteralString) -> int:
    """Number of rows of `tools` that meet a condition."""
    row = connection.execute("SELECT count(*) FROM tools WHERE " + condition).fetchone()
    return int(row[0]) if row else 0


def _delete_unused_vectors(connection: Connection, documents: Sequence[bytes | None]) -> None:
    connection.execute(
        "DELETE FROM embeddings e WHERE document = ANY(%s) "
        "AND NOT EXISTS (SELECT 1 FROM tools t WHERE t.document = e.document)",
        [[key for key in documents if key is not None]],
    )


def _prune_removed(connection: Connection) -> None:
    """Delete the older half of the rows of removed tools once they outnumber the tools.

    Their versions go too: a replica that stopped there finds its version missing and reads the whole catalogue.
    """
    removed = count_tools(connection, "facts IS NULL")
    if removed <= MAX_REMOVED or removed <= count_tools(connection, "facts IS NOT NULL"):
        return
    row = connection.execute(
        "SELECT version FROM tools WHERE facts IS NULL ORDER BY version OFFSET %s LIMIT 1", [removed // 2]
    ).fetchone()
    assert row is not None
    connection.execute("DELETE FROM tools WHERE facts IS NULL AND version <= %s", row)
    connection.execute("DELETE FROM versions WHERE version < %s", row)
