"""Cache of a model's answers, for one job or several.

A key is the hash of an utterance and of everything else that an answer depends on: model, adapter, template, decoding,
and the index where the prompt shows tools. The file is SQLite; several jobs may use it at the same time.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrievers.errors import BadInput
from rewrite.types import Answer

DISK_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)
"""SQLite's codes for a full disk, a quota and a limit on the size of files."""
TIMEOUT = 60.0
"""Seconds to wait for another process that writes."""
KEYS_PER_STATEMENT = 500


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """A model's answer, or why there is none."""

    text: str | None
    """None: the utterance is too long for the model."""
    tokens: int = 0
    finished: bool = True
    cut: int = 0
    """Candidates that did not fit into the prompt."""
    refused: str = ""
    """Why the server refused the prompt; a refusal is never cached."""

    @property
    def answer(self) -> Answer | None:
        """The answer as a backend gives it."""
        return None if self.text is None else Answer(self.text, self.tokens, self.finished)


def make_key_function(scope: Mapping[str, Any]) -> Callable[[str], str]:
    """A function from utterances to keys; `scope` is everything else that an answer depends on."""
    start = hashlib.sha256(json.dumps(scope, sort_keys=True, default=str).encode())

    def key(utterance: str) -> str:
        digest = start.copy()
        digest.update(b"\0" + utterance.encode("utf-8"))
        return digest.hexdigest()[:32]

    return key


class AnswerCache:
    """A file of answers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors():
            self._file = sqlite3.connect(path, timeout=TIMEOUT, isolation_level=None)
            self._enable_wal()
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")

    def _enable_wal(self) -> None:
        """Switch to write-ahead logging; SQLite's own timeout does not cover two processes that switch at once."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                self._file.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def get(self, keys: Sequence[str]) -> dict[str, CachedAnswer]:
        """The cached answers by key."""
        answers: dict[str, CachedAnswer] = {}
        with self._errors():
            for start in range(0, len(keys), KEYS_PER_STATEMENT):
                batch = keys[start : start + KEYS_PER_STATEMENT]
                marks = ",".join("?" * len(batch))
                rows: Iterable[tuple[str, str]] = self._file.execute(
                    f"SELECT key, value FROM answers WHERE key IN ({marks})", batch
                )
                answers.update((key, CachedAnswer(*json.loads(value))) for key, value in rows)
        return answers

    def put(self, answers: Mapping[str, CachedAnswer]) -> None:
        """Add answers; one that is cached already stays."""
        rows = [
            (key, json.dumps([answer.text, answer.tokens, answer.finished, answer.cut]))
            for key, answer in sorted(answers.items())
            if not answer.refused
        ]
        if rows:
            with self._errors():
                self._file.execute("BEGIN IMMEDIATE")
                self._file.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)
                self._file.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Report a damaged file in one sentence, and a full disk as ENOSPC."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode in DISK_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path)) from error
            raise OSError(f"the cache {self.path} cannot be used ({error})") from error
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            raise BadInput(f"{self.path} is not a cache of answers ({error}); name another file") from error
