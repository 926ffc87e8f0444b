"""Keeps the graph of an encoder in the cache, by the hash of its weights; a damaged file is written again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

VERSION = 4  # of the graph: raise it where the same weights give another one
DIGEST = hashlib.sha256().digest_size


def load_graph(cache: Path | None, name: str, build: Callable[[], bytes]) -> bytes:
    """The graph of this name from the cache, if it is there and whole; else built, and kept where that is possible."""
    if cache is None:
        return build()
    file = cache / "graphs" / f"{name}-{VERSION}.graph"
    graph = _read(file)
    if graph is None:
        graph = build()
        with contextlib.suppress(OSError):  # a full or read-only disk: it is built again next time
            _write(file, graph)
    return graph


def _read(file: Path) -> bytes | None:
    """The graph, if its bytes are those that were written."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    digest, graph = data[:DIGEST], data[DIGEST:]
    return graph if hashlib.sha256(graph).digest() == digest else None


def _write(file: Path, graph: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(prefix=".part-", dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(hashlib.sha256(graph).digest() + graph)
        os.replace(part, file)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
