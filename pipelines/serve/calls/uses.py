"""Uses of tools: successful calls, and confirmations by feedback, read from the server's logs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_USES = 1_000
"""Uses of a tool that are counted; more make no difference."""
log = logging.getLogger("rewrite-serve")


class UseCounts:
    """Counts each tool once per key and query or search. Reading again reads only what was added."""

    def __init__(self, folders: Sequence[Path], keys: Sequence[str] = ()) -> None:
        """`folders`: of feedback and of calls. `keys`: those whose records count; empty: all."""
        self._folders, self._keys = folders, frozenset(keys)
        self._offsets: dict[Path, int] = {}
        self._seen: set[int] = set()
        self._counts: dict[str, int] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Tool -> uses; a tool without uses is not in it."""
        return self._counts

    def read(self) -> None:
        """Count what was written since the last time."""
        for folder in self._folders:
            for path in sorted([*folder.glob("feedback-*.jsonl"), *folder.glob("calls-*.jsonl")]):
                try:
                    for record in self._new_records(path):
                        self.count(record)
                except OSError as error:
                    log.warning("uses of tools cannot be read: %s", error)

    def _new_records(self, path: Path) -> Iterator[dict[str, Any]]:
        with path.open("rb") as stream:
            stream.seek(self._offsets.get(path, 0))
            for line in stream:
                if not line.endswith(b"\n"):
                    break  # being written
                self._offsets[path] = self._offsets.get(path, 0) + len(line)
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    continue  # torn
                if isinstance(record, dict):
                    yield record

    def count(self, record: Mapping[str, Any]) -> None:
        """Count a record of feedback or of a call."""
        key, query = record.get("key"), record.get("utterance")
        tools = record.get("tools")
        if record.get("kind") == "call":
            # Without a rank, the search is only what the caller says.
            counts = record.get("outcome") == "ok" and record.get("rank") is not None
            tools, query = [record.get("tool")] if counts else [], record.get("search")
        if query is None or not isinstance(tools, list) or (self._keys and key not in self._keys):
            return
        for tool in tools:
            identity = hash((key, query, tool))
            if isinstance(tool, str) and identity not in self._seen and self._counts.get(tool, 0) < MAX_USES:
                self._seen.add(identity)
                self._counts[tool] = self._counts.get(tool, 0) + 1
