"""Changes of the catalogue in the database.

Every change gets the next version number. The number is taken from the one row of `catalogue`, locked from the
beginning of a change to its commit: changes are committed in the order of their numbers, so whoever has seen version n
has seen everything up to n. (Numbers from a sequence would become visible out of order: a long transaction with number
5 could commit after one with number 6, and a gateway that asks for "all after 6" would never hear of 5.) Changes of a
catalogue are rare and short; vectors are made before the lock is taken.

NOTIFY wakes the others and carries the version number alone: its payload is limited, and it reaches only those who are
connected. What changed is always asked for by version number, by whoever was away and by everybody now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import LiteralString

from pipelines.database.catalogue_state import AT_ONCE, State, need_state
from pipelines.database.session import Connection
from pipelines.database.vectors import Stored
from retrievers.dense.embeddings import text_key
from retrievers.errors import BadInput, IndexBusy
from retrievers.index import Change
from retrievers.index import tools as tool_lines
from retrievers.text import clean, document
from retrievers.types import Tool, ToolId

MOST_REMOVED = 10_000
"""Traces of removed tools that are kept for those who were away, or as many as there are tools."""
_UPSERT = """
INSERT INTO tools (id, facts, document, version)
SELECT id, facts, document, %s FROM unnest(%s::text[], %s::text[], %s::bytea[]) AS given (id, facts, document)
ON CONFLICT (id) DO UPDATE SET facts = excluded.facts, document = excluded.document, version = excluded.version
"""


def put(connection: Connection, tools: Sequence[Tool], settings: str, vectors: Stored) -> Change:
    """Adds or replaces tools, with the vectors that were made for them under these settings."""
    state = need_state(connection, lock=True)
    if state.settings != settings:
        raise IndexBusy("the retrievers of the catalogue have just been changed; try again")
    change = write_tools(connection, tools, state.manifest.text, state.version + 1)
    if not change.added and not change.updated:
        return replace(change, fingerprint=state.fingerprint)
    store_vectors(connection, vectors)
    return seal(connection, state.version + 1, settings, change)


def remove(connection: Connection, ids: Sequence[ToolId]) -> Change:
    """Takes tools out. An id that is not there is refused, and then nothing is removed."""
    state = need_state(connection, lock=True)
    wanted = sorted(set(ids))
    query = "SELECT id FROM tools WHERE id = ANY(%s) AND facts IS NOT NULL"
    held = {tool for (tool,) in connection.execute(query, [wanted])}
    if strangers := [tool for tool in wanted if tool not in held]:
        raise BadInput(f"the catalogue has no tool {strangers[0]!r}")
    if count(connection, "facts IS NOT NULL") == len(wanted):
        raise BadInput(f"removing all {len(wanted)} tools would leave the catalogue empty")
    bury(connection, wanted, state.version + 1)
    return seal(connection, state.version + 1, state.settings, Change("", removed=len(wanted)))


def write_tools(connection: Connection, tools: Sequence[Tool], text: tuple[str, ...], version: int) -> Change:
    """Writes those tools that are new or have changed. Under the lock."""
    added = updated = 0
    for start in range(0, len(tools), AT_ONCE):
        lines = {tool.id: tool_lines.encode([tool]).decode().rstrip("\n") for tool in tools[start : start + AT_ONCE]}
        query = "SELECT id, facts, document FROM tools WHERE id = ANY(%s) AND facts IS NOT NULL"
        held = {row[0]: row[1:] for row in connection.execute(query, [list(lines)], binary=True)}
        some = [tool for tool in tools[start : start + AT_ONCE] if held.get(tool.id, ("",))[0] != lines[tool.id]]
        connection.execute(
            _UPSERT,
            [
                version,
                [tool.id for tool in some],
                [lines[tool.id] for tool in some],
                [document_key(tool, text) for tool in some],
            ],
        )
        _forget(connection, [held[tool.id][1] for tool in some if tool.id in held])
        updated += sum(tool.id in held for tool in some)
        added += sum(tool.id not in held for tool in some)
    return Change("", added, updated, len(tools) - added - updated)


def document_key(tool: Tool, text: tuple[str, ...]) -> bytes:
    """What the vectors of a tool are known by."""
    return text_key(clean(document(tool, text)))


def bury(connection: Connection, ids: Sequence[ToolId], version: int) -> None:
    """Leaves of tools nothing but the trace that they are gone. Under the lock."""
    for start in range(0, len(ids), AT_ONCE):
        some = list(ids[start : start + AT_ONCE])
        query = "SELECT document FROM tools WHERE id = ANY(%s)"
        documents = [key for (key,) in connection.execute(query, [some], binary=True)]
        connection.execute(
            "UPDATE tools SET facts = NULL, document = NULL, version = %s WHERE id = ANY(%s)", [version, some]
        )
        _forget(connection, documents)


def known_vectors(connection: Connection, documents: Sequence[bytes]) -> Stored:
    """The vectors of documents that somebody has embedded already."""
    query = "SELECT model, document, vector FROM embeddings WHERE document = ANY(%s)"
    rows = connection.execute(query, [list(documents)], binary=True)
    return {(model, key): vector for model, key, vector in rows}


def store_vectors(connection: Connection, vectors: Stored) -> None:
    """Keeps vectors; those that are there already stay."""
    rows = list(vectors.items())
    for start in range(0, len(rows), AT_ONCE):
        some = rows[start : start + AT_ONCE]
        connection.execute(
            "INSERT INTO embeddings (model, document, vector) "
            "SELECT * FROM unnest(%s::text[], %s::bytea[], %s::bytea[]) ON CONFLICT DO NOTHING",
            [[model for (model, _), _ in some], [key for (_, key), _ in some], [vector for _, vector in some]],
        )


def seal(connection: Connection, version: int, settings: str, change: Change) -> Change:
    """The last act of a change: its number, its stamp, and word to the others as soon as it is committed."""
    _sweep(connection)
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
    return replace(change, fingerprint=State(version, str(row[0]), settings).fingerprint)


def count(connection: Connection, which: LiteralString) -> int:
    """How many rows of `tools` there are."""
    row = connection.execute("SELECT count(*) FROM tools WHERE " + which).fetchone()
    return int(row[0]) if row else 0


def _forget(connection: Connection, documents: Sequence[bytes | None]) -> None:
    """Removes the vectors of documents that no tool has any more."""
    connection.execute(
        "DELETE FROM embeddings e WHERE document = ANY(%s) "
        "AND NOT EXISTS (SELECT 1 FROM tools t WHERE t.document = e.document)",
        [[key for key in documents if key is not None]],
    )


def _sweep(connection: Connection) -> None:
    """Removes the older half of the traces of removed tools, once there are more of them than tools.

    The versions before it go as well: a gateway that stopped there can no longer be told what is gone, and by its
    missing version it knows.
    """
    removed = count(connection, "facts IS NULL")
    if removed <= MOST_REMOVED or removed <= count(connection, "facts IS NOT NULL"):
        return
    row = connection.execute(
        "SELECT version FROM tools WHERE facts IS NULL ORDER BY version OFFSET %s LIMIT 1", [removed // 2]
    ).fetchone()
    assert row is not None
    connection.execute("DELETE FROM tools WHERE facts IS NULL AND version <= %s", row)
    connection.execute("DELETE FROM versions WHERE version < %s", row)
