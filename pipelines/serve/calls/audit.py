"""Log of calls and of the searches before them: lines of JSON, one file per day.

    {"time": 1763467200.1, "kind": "search", "search": "s3f…", "key": "agent", "tools": ["files/read", …]}
    {"time": 1763467204.7, "kind": "call", "key": "agent", "tool": "files/read", "outcome": "ok", "ms": 3.1,
     "search": "s3f…", "rank": 1}

`search` and `rank` say which search listed the tool, and at which rank: the one that the caller names, else its newest
that lists the tool. Queries and arguments are written only if the config says so.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.serve.calls.outcomes import Outcome
from pipelines.serve.calls.settings import CallSettings

MAX_RECENT = 200
"""Calls that the page shows."""
MAX_SEARCHES = 10_000
"""Searches that a call may follow."""
FOLLOW_SECONDS = 600.0
"""A search is forgotten after this time."""
Record = dict[str, Any]
log = logging.getLogger("rewrite-serve")


class AuditLog:
    """Writes records, and connects calls with searches."""

    def __init__(self, settings: CallSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings, self._clock = settings, clock
        self._folder = Path(settings.log).expanduser() if settings.log else None
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self.recent: deque[Record] = deque(maxlen=MAX_RECENT)
        """The newest calls, without arguments."""
        self._searches: OrderedDict[str, tuple[float, str, dict[str, int]]] = OrderedDict()
        self._newest: dict[tuple[str, str], str] = {}
        """Key and tool -> the key's newest search that lists the tool."""
        self._file: tuple[str, int] | None = None

    def add_search(self, key: str, query: str, tools: Sequence[str], index: str) -> str:
        """Log a search; returns its id."""
        search, now = "s" + secrets.token_hex(6), self._clock()
        ranks = {tool: rank for rank, tool in enumerate(tools, 1)}
        self._searches[search] = now, key, ranks
        for tool in ranks:
            self._newest[key, tool] = search
        while len(self._searches) > MAX_SEARCHES:
            self._forget(*self._searches.popitem(last=False))
        record: Record = {"time": round(now, 3), "kind": "search", "search": search, "key": key}
        if self._settings.log_queries:
            record["query"] = query
        self._write({**record, "tools": list(tools), "index": index})
        return search

    def add_call(
        self,
        key: str,
        tool: str,
        arguments: Mapping[str, Any],
        seconds: float,
        outcome: Outcome,
        search: str | None = None,
    ) -> None:
        """Log a call."""
        now = self._clock()
        search, rank = self._follow(key, tool, search, now)
        record: Record = {
            "time": round(now, 3),
            "kind": "call",
            "key": key,
            "tool": tool[:512],
            "outcome": outcome,
            "ms": round(1000 * seconds, 1),
            "search": search,
            "rank": rank,
        }
        self.recent.append(record)
        self._write({**record, "arguments": arguments} if self._settings.log_arguments else record)

    def _follow(self, key: str, tool: str, search: str | None, now: float) -> tuple[str | None, int | None]:
        """The search that a call follows, and the tool's rank in it; a search of another key does not count."""
        named = self._searches.get(search or "")
        if search and named and named[1] == key and tool in named[2]:
            return search, named[2][tool]
        identity = self._newest.get((key, tool), "")
        if identity and now - self._searches[identity][0] <= FOLLOW_SECONDS:
            return identity, self._searches[identity][2][tool]
        return None, None

    def _forget(self, search: str, record: tuple[float, str, dict[str, int]]) -> None:
        _, key, ranks = record
        for tool in ranks:
            if self._newest.get((key, tool)) == search:
                del self._newest[key, tool]

    def _write(self, record: Record) -> None:
        """Append one line. A full disk is logged and does not fail the call, which has happened already."""
        if self._folder is None:
            return
        line = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        day = time.strftime("%Y-%m-%d", time.gmtime(self._clock()))
        try:
            if self._file is None or self._file[0] != day:
                self.close()
                path = self._folder / f"calls-{day}.jsonl"
                self._file = day, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(self._file[1], line)
        except OSError as error:
            log.error("the log of calls cannot be written: %s", error)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file[1])
            self._file = None


def read_audit(folder: Path) -> Iterator[Record]:
    """All complete records of a folder, oldest file first."""
    for path in sorted(folder.glob("calls-*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    continue  # torn
                if isinstance(record, dict):
                    yield record
