"""Vectors that were computed once, by model and content, so that nothing is embedded twice.

One SQLite file a model: safe to share between processes, safe to kill. Losing it costs time, never correctness.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from retrievers.errors import BadInput
from retrievers.index.files import disk_room


class EmbeddingCache:
    """Text -> vector of one model."""

    def __init__(self, folder: Path, model: str) -> None:
        self._path = folder / "embeddings" / f"{model}.sqlite"
        with disk_room(folder):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._connect() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")

    def get(self, texts: Sequence[str]) -> dict[int, np.ndarray]:
        """Vectors of the texts that are known, by their place in the sequence."""
        keys = [_key(text) for text in texts]
        found: dict[bytes, bytes] = {}
        with self._connect() as connection:
            for start in range(0, len(keys), 500):
                some = keys[start : start + 500]
                marks = ",".join("?" * len(some))
                found.update(connection.execute(f"SELECT key, vector FROM vectors WHERE key IN ({marks})", some))
        return {place: np.frombuffer(found[key], np.float32) for place, key in enumerate(keys) if key in found}

    def put(self, texts: Iterable[str], vectors: np.ndarray) -> None:
        """Remembers vectors."""
        rows = [(_key(text), vector.tobytes()) for text, vector in zip(texts, vectors.astype(np.float32), strict=True)]
        with self._connect() as connection:
            connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)
            connection.commit()

    def _connect(self) -> closing[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(self._path, timeout=60)
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.DatabaseError as error:
            raise BadInput(
                f"the embedding cache {self._path} cannot be used ({error}); delete it, it is made again"
            ) from error
        return closing(connection)


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
