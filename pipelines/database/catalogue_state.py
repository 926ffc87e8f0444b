"""What the database says: the state of the catalogue, and what changed since a version.

A gateway asks for everything after the version it has. Versions also have a random stamp each: a database that was
restored from yesterday's backup and changed since has other stamps for the same numbers. Who finds that his own is not
there any more reads everything anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from pipelines.database.session import Connection
from pipelines.database.vectors import Stored
from retrievers.errors import IndexMissing
from retrievers.index import manifest as manifests
from retrievers.index.manifest import Manifest
from retrievers.types import ToolId

AT_ONCE = 2_000
"""Rows in one statement."""


@dataclass(frozen=True, slots=True)
class State:
    """A version of the catalogue."""

    version: int
    stamp: str
    settings: str

    @property
    def fingerprint(self) -> str:
        """The same for every gateway that has this version."""
        return hashlib.sha256(f"{self.stamp}/{self.settings}".encode()).hexdigest()[:16]

    @property
    def manifest(self) -> Manifest:
        """Texts and retrievers; the segments are everybody's own."""
        return manifests.decode(json.loads(self.settings))


@dataclass(frozen=True, slots=True)
class News:
    """What there is to know after a version: all of it, or what changed since."""

    state: State
    whole: bool
    lines: tuple[str, ...] = ()
    gone: frozenset[ToolId] = frozenset()
    vectors: Stored | None = None


def settings_of(manifest: Manifest) -> str:
    """What the database keeps of a manifest; queries that a folder remembers stay there."""
    facts = asdict(Manifest(manifest.text, manifest.retrievers))
    for part in facts["retrievers"].values():
        del part["extras"]
    return json.dumps(facts, sort_keys=True, ensure_ascii=False)


def read_state(connection: Connection, lock: bool = False) -> State | None:
    """The catalogue as it is now; with `lock`, as it stays until this transaction ends."""
    if lock:
        # A statement of its own: one that waits for a lock goes on with what it saw before, and would then find the
        # new version in one table and not in the other.
        connection.execute("SELECT version FROM catalogue FOR UPDATE")
    query = "SELECT version, stamp::text, settings FROM catalogue JOIN versions USING (version)"
    row = connection.execute(query).fetchone()
    return State(int(row[0]), str(row[1]), str(row[2])) if row else None


def need_state(connection: Connection, lock: bool = False) -> State:
    """The same, of a catalogue that must be there."""
    found = read_state(connection, lock)
    if found is None:
        raise IndexMissing("the database holds no catalogue yet; fill it with `rewrite-index push`")
    return found


def read_news(connection: Connection, known: State | None) -> News | None:
    """What changed since a state; None: nothing did. In a transaction that sees one moment only."""
    state = need_state(connection)
    if state == known:
        return None
    since = 0
    if known is not None and known.settings == state.settings and known.version < state.version:
        row = connection.execute("SELECT stamp::text FROM versions WHERE version = %s", [known.version]).fetchone()
        since = known.version if row and row[0] == known.stamp else 0
    lines, gone = list[str](), set[ToolId]()
    with connection.cursor("tools", binary=True) as cursor:  # on the server's side: fetched in portions
        cursor.itersize = AT_ONCE
        # Of a whole catalogue nobody needs to hear what is gone.
        cursor.execute(
            "SELECT id, facts FROM tools WHERE version > %s AND (facts IS NOT NULL OR %s) ORDER BY id",
            [since, since > 0],
        )
        for tool, facts in cursor:
            if facts is None:
                gone.add(tool)
            else:
                lines.append(facts)
    vectors: Stored = {}
    with connection.cursor("vectors", binary=True) as cursor:
        cursor.itersize = AT_ONCE
        cursor.execute(
            "SELECT model, document, vector FROM embeddings JOIN tools USING (document) WHERE version > %s", [since]
        )
        for model, key, vector in cursor:
            vectors[model, key] = vector
    return News(state, not since, tuple(lines), frozenset(gone), vectors)
