"""Answers that are known already, by what was asked of whom: the memory of a job, or of many.

A key is the hash of an utterance and of everything else that an answer depends on: model, adapter, template, decoding,
and the index where the prompt shows tools. The file is SQLite; several jobs may use it at the same time.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrievers.errors import BadInput
from rewrite.types import Answer

NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)
"""What SQLite makes of a full disk, a quota and a limit on the size of files."""
ASKED_AT_ONCE = 500
"""Keys in one statement."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a model answered, or why it did not."""

    text: str | None
    """None: the utterance is too long to be asked."""
    tokens: int = 0
    finished: bool = True
    cut: int = 0
    """Candidates that did not fit into the prompt."""
    refused: str = ""
    """Why the server would not answer; such a one is never kept."""

    @property
    def answer(self) -> Answer | None:
        """As a backend gave it."""
        return None if self.text is None else Answer(self.text, self.tokens, self.finished)


def key_maker(scope: Mapping[str, Any]) -> Callable[[str], str]:
    """A function from utterances to keys."""
    start = hashlib.sha256(json.dumps(scope, sort_keys=True, default=str).encode())

    def key(utterance: str) -> str:
        digest = start.copy()
        digest.update(b"\0" + utterance.encode("utf-8"))
        return digest.hexdigest()[:32]

    return key


class Answers:
    """A file of answers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._told():
            self._file = sqlite3.connect(path, timeout=60, isolation_level=None)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")

    def get(self, keys: Sequence[str]) -> dict[str, Known]:
        """Those that are known."""
        found: dict[str, Known] = {}
        with self._told():
            for start in range(0, len(keys), ASKED_AT_ONCE):
                some = keys[start : start + ASKED_AT_ONCE]
                marks = ",".join("?" * len(some))
                rows: Iterable[tuple[str, str]] = self._file.execute(
                    f"SELECT key, value FROM answers WHERE key IN ({marks})", some
                )
                found.update((key, Known(*json.loads(value))) for key, value in rows)
        return found

    def put(self, answers: Mapping[str, Known]) -> None:
        """Keeps answers; one that is known already stays as it is."""
        rows = [
            (key, json.dumps([known.text, known.tokens, known.finished, known.cut]))
            for key, known in sorted(answers.items())
            if not known.refused
        ]
        if rows:
            with self._told():
                self._file.execute("BEGIN IMMEDIATE")
                self._file.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)
                self._file.execute("COMMIT")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A file that is none, or is damaged, is one sentence; a full disk is a full disk."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode in NO_ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path)) from error
            raise OSError(f"the cache {self.path} cannot be used ({error})") from error
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            raise BadInput(f"{self.path} is not a cache of answers ({error}); name another file") from error
