"""Trained models of an index, stored in the database: a gateway needs only its address."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path, PurePosixPath

from pipelines.database.session import Connection, Session
from retrievers.errors import IndexBroken
from retrievers.files import Entry, disk_room, is_intact
from retrievers.index.manifest import Manifest, Part

CHUNK_BYTES = 4_000_000
"""Bytes of a file per row."""


def store_models(connection: Connection, folder: Path, manifest: Manifest) -> None:
    """Store the files of an index's models, and delete files that no model names any more."""
    entries = [entry for part in manifest.retrievers.values() for entry in part.files.values()]
    connection.execute("DELETE FROM files WHERE NOT sha256 = ANY(%s)", [[entry.sha256 for entry in entries]])
    stored = {sha256 for (sha256,) in connection.execute("SELECT DISTINCT sha256 FROM files")}
    for entry in entries:
        if entry.sha256 in stored:
            continue
        stored.add(entry.sha256)
        with (folder / entry.file).open("rb") as stream:
            for number in range(max(1, -(-entry.bytes // CHUNK_BYTES))):  # an empty file has a row too
                data = stream.read(CHUNK_BYTES)
                connection.execute("INSERT INTO files VALUES (%s, %s, %s)", [entry.sha256, number, data], binary=True)


def fetch_models(session: Session, manifest: Manifest, cache: Path) -> Path:
    """The folder with these retrievers' models; each is fetched once and checked by its hashes."""
    folder = cache / "shared-models"
    with disk_room(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for part in manifest.retrievers.values():
            if part.model and not _is_complete(folder, part):
                _fetch(session, folder, part)
    return folder


def _is_complete(folder: Path, part: Part) -> bool:
    return all(is_intact(folder, entry) for entry in part.files.values())


def _fetch(session: Session, folder: Path, part: Part) -> None:
    work = Path(tempfile.mkdtemp(prefix=".part-", dir=folder))
    try:
        for entry in part.files.values():
            path = work / _checked_path(entry, part)
            path.parent.mkdir(parents=True, exist_ok=True)
            session.run(partial(_copy, entry, path), reading=True)
        if not _is_complete(work, part):
            raise IndexBroken("a model in the database is damaged; push the index again")
        if not _is_complete(folder, part):  # else another process was faster
            shutil.rmtree(folder / part.model, ignore_errors=True)
            os.rename(work / part.model, folder / part.model)
    except OSError:
        if not _is_complete(folder, part):
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _copy(entry: Entry, path: Path, connection: Connection) -> None:
    with path.open("wb") as stream, connection.cursor("parts", binary=True) as cursor:
        cursor.itersize = 1
        cursor.execute("SELECT data FROM files WHERE sha256 = %s ORDER BY part", [entry.sha256])
        for (data,) in cursor:
            stream.write(data)


def _checked_path(entry: Entry, part: Part) -> str:
    """A path inside the model's own folder; a database must not name any other."""
    path = PurePosixPath(entry.file)
    if path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or path.parts[0] != part.model:
        raise IndexBroken(f"the database names a file outside of its model: {entry.file!r}")
    return entry.file
