"""Cache of embeddings by model and text.

One SQLite file per model: safe to share between processes, safe to kill. Losing it costs time, never correctness.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retrievers.base import VectorCache
from retrievers.dense.encoder import Encoder, check_device
from retrievers.errors import BadInput, IndexBusy, OutOfDisk
from retrievers.files import disk_room
from retrievers.progress import Progress

if TYPE_CHECKING:
    from retrievers.kind import Context

CHUNK = 512  # texts embedded between two writes to the cache: the most that a killed build loses
CPU_CHUNK = 64  # the same on a CPU, where they take seconds
MAX_EFFORT = 1_000  # characters of a text that count in the remaining time: an encoder cuts long texts


class EmbeddingCache:
    """Text -> vector of one model."""

    def __init__(self, folder: Path, model: str) -> None:
        self._path = folder / "embeddings" / f"{model}.sqlite"
        with disk_room(folder):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._open() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")

    def get(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        keys = {text_key(text): text for text in texts}
        known: dict[str, np.ndarray] = {}
        wanted = list(keys)
        with self._open() as connection:
            for start in range(0, len(wanted), 500):
                batch = wanted[start : start + 500]
                marks = ",".join("?" * len(batch))
                for key, vector in connection.execute(f"SELECT key, vector FROM vectors WHERE key IN ({marks})", batch):
                    known[keys[key]] = np.frombuffer(vector, np.float32)
        return known

    def put(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        rows = [
            (text_key(text), vector.tobytes()) for text, vector in zip(texts, vectors.astype(np.float32), strict=True)
        ]
        with self._open() as connection:
            connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path, timeout=60)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                yield connection
                connection.commit()
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            cache = f"the embedding cache {self._path}"
            if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise OutOfDisk(f"{cache} cannot be written ({error}); is the disk full?") from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise IndexBusy(f"another process holds {cache}; nothing was changed") from error
            raise BadInput(f"{cache} cannot be used ({error}); delete it, a new one is made") from error


def embed(
    encoder: Encoder, texts: Sequence[str], context: Context, method: str = "documents", model: str = ""
) -> np.ndarray:
    """(texts, dimensions): vectors of documents or queries, from the cache where it has them.

    `model`: the encoder's name, to be shown with the progress.
    """
    name = encoder.fingerprint if method == "documents" else f"{encoder.fingerprint}-{method}"
    if context.vectors is not None:
        cache: VectorCache | None = context.vectors(name)
    else:
        cache = EmbeddingCache(context.cache, name) if context.cache else None
    known = cache.get(texts) if cache else {}
    # Long texts first: a batch is padded to its longest, and memory runs out at once or never.
    missing = sorted(set(texts) - known.keys(), key=lambda text: (-len(text), text))
    unit = "tools" if method == "documents" else "queries"
    size = CPU_CHUNK if missing and check_device(context.device) == "cpu" else CHUNK
    stage = f"embedding with {model.rpartition('/')[2]}" if model else "embedding"
    with Progress(stage, len(missing), unit, context.show_progress, effort=_effort(missing)) as progress:
        for start in range(0, len(missing), size):
            chunk = missing[start : start + size]
            vectors = getattr(encoder, method)(chunk)
            if cache:
                cache.put(chunk, vectors)
            known.update(zip(chunk, vectors, strict=True))
            progress.add(len(chunk), effort=_effort(chunk))
    return np.stack([known[text] for text in texts])


def _effort(texts: Sequence[str]) -> float:
    """Expected effort of embedding texts; long ones come first, so that their number says little."""
    return float(sum(min(len(text), MAX_EFFORT) for text in texts))


def text_key(text: str) -> bytes:
    """Hash that identifies a text."""
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
