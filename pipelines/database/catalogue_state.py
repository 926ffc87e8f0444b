"""Read the catalogue's version from the database, and everything that changed since a version.

Every version has a random stamp. A database that was restored from a backup and changed since has other stamps for the
same version numbers: a replica whose stamp is missing reads the whole catalogue again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from pipelines.database.session import Connection
from pipelines.database.vectors import VectorBytes
from retrievers.errors import IndexMissing
from retrievers.index import manifest as manifests
from retrievers.index.manifest import Manifest
from retrievers.types import ToolId

BATCH_ROWS = 2_000
"""Rows per statement."""


@dataclass(frozen=True, slots=True)
class CatalogueVersion:
    """A version of the catalogue."""

    version: int
    stamp: str
    settings: str

    @property
    def fingerprint(self) -> str:
        """The same at every gateway that has this version."""
        return hashlib.sha256(f"{self.stamp}/{self.settings}".encode()).hexdigest()[:16]

    @property
    def manifest(self) -> Manifest:
        """Texts and retrievers; segments are local to each replica."""
        return manifests.decode(json.loads(self.settings))


@dataclass(frozen=True, slots=True)
class CatalogueUpdate:
    """Tools and vectors after a version: the whole catalogue, or the changes since."""

    version: CatalogueVersion
    whole: bool
    lines: tuple[str, ...]
    removed: frozenset[ToolId]
    vectors: VectorBytes


def encode_settings(manifest: Manifest) -> str:
    """The part of a manifest that the database keeps; queries that a folder remembers are left out."""
    facts = asdict(Manifest(manifest.text, manifest.retrievers))
    for part in facts["retrievers"].values():
        del part["extras"]
        if not part["calibration"]:
            del part["calibration"]
    return json.dumps(facts, sort_keys=True, ensure_ascii=False)


def read_version(connection: Connection, lock: bool = False) -> CatalogueVersion | None:
    """The current version; None for an empty database. `lock` keeps it until the transaction ends."""
    if lock:
        # A separate statement: one that waits for a lock continues with its old snapshot of the other table.
        connection.execute("SELECT version FROM catalogue FOR UPDATE")
    query = "SELECT version, stamp::text, settings FROM catalogue JOIN versions USING (version)"
    row = connection.execute(query).fetchone()
    return CatalogueVersion(int(row[0]), str(row[1]), str(row[2])) if row else None


def require_version(connection: Connection, lock: bool = False) -> CatalogueVersion:
    """The current version; an empty database raises IndexMissing."""
    version = read_version(connection, lock)
    if version is None:
        raise IndexMissing("the database holds no catalogue yet; fill it with `rewrite-index push`")
    return version


def read_update(connection: Connection, known: CatalogueVersion | None) -> CatalogueUpdate | None:
    """Changes since a version, None if there are none. Needs a transaction with one snapshot (REPEATABLE READ)."""
    version = require_version(connection)
    if version == known:
        return None
    since = 0
    if known is not None and known.settings == version.settings and known.version < version.version:
        row = connection.execute("SELECT stamp::text FROM versions WHERE version = %s", [known.version]).fetchone()
        since = known.version if row and row[0] == known.stamp else 0
    lines, removed, vectors = list[str](), set[ToolId](), VectorBytes()
    with connection.cursor("tools", binary=True) as cursor:  # a server-side cursor, fetched in batches
        cursor.itersize = BATCH_ROWS
        cursor.execute(
            "SELECT id, facts FROM tools WHERE version > %s AND (facts IS NOT NULL OR %s) ORDER BY id",
            [since, since > 0],
        )
        for tool, facts in cursor:
            if facts is None:
                removed.add(tool)
            else:
                lines.append(facts)
    with connection.cursor("vectors", binary=True) as cursor:
        cursor.itersize = BATCH_ROWS
        query = "SELECT model, document, vector FROM embeddings JOIN tools USING (document) WHERE version > %s"
        for model, key, vector in cursor.execute(query, [since]):
            vectors[model, key] = vector
    return CatalogueUpdate(version, not since, tuple(lines), frozenset(removed), vectors)
