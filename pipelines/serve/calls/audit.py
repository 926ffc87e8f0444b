"""Log of calls and of the searches before them: lines of JSON, one file per day.

    {"time": 1763467200.1, "kind": "search", "search": "s3f…", "key": "agent", "tools": ["files/read", …]}
    {"time": 1763467204.7, "kind": "call", "key": "agent", "tool": "files/read", "outcome": "ok", "ms": 3.1,
     "search": "s3f…", "rank": 1}

`search` and `rank` say which search listed the tool, and at which rank: the one that the caller names, else its newest
that lists the tool. A search that it names and this gateway does not know may be another replica's: it is logged
without a rank, and `rewrite-train renew` looks it up. Queries and arguments are written only if the config says so.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.serve.calls.outcomes import Outcome
from pipelines.serve.calls.settings import CallSettings

MAX_RECENT = 200
"""Calls that the page shows."""
MAX_SEARCHES = 10_000
"""Searches that a call may follow."""
MAX_LISTED = 100_000
"""Tools in these searches. Beyond either limit, the key that holds most loses its oldest search."""
FOLLOW_SECONDS = 600.0
"""A call that names no search follows one within this time."""
_SEARCH = re.compile(r"s[0-9a-f]{12}")
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
        self._searches: dict[str, tuple[float, str, tuple[str, ...]]] = {}
        self._held: defaultdict[str, deque[str]] = defaultdict(deque)
        """The searches of each key, oldest first."""
        self._listed: Counter[str] = Counter()
        """Tools in the searches of each key, and one per search."""
        self._size = 0
        """Of all keys."""
        self._newest: dict[tuple[str, str], str] = {}
        """Key and tool -> the key's newest search that lists the tool."""
        self._file: tuple[str, int] | None = None

    @property
    def remembered(self) -> tuple[int, int]:
        """Searches, and the tools in them."""
        return len(self._searches), self._size - len(self._searches)

    def add_search(self, key: str, query: str, tools: Sequence[str], index: str) -> str:
        """Log a search; returns its id."""
        search, now = "s" + secrets.token_hex(6), self._clock()
        self._searches[search] = now, key, tuple(tools)
        self._held[key].append(search)
        self._listed[key] += 1 + len(tools)
        self._size += 1 + len(tools)
        for tool in tools:
            self._newest[key, tool] = search
        while len(self._searches) > MAX_SEARCHES or self._size > MAX_LISTED:
            self._forget_oldest(max(self._listed, key=self._listed.__getitem__))
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
        try:
            self._write({**record, "arguments": arguments} if self._settings.log_arguments else record)
        except RecursionError:  # arguments that were refused because they are nested too deeply
            self._write(record)

    def _follow(self, key: str, tool: str, search: str | None, now: float) -> tuple[str | None, int | None]:
        """The search that a call follows, and the tool's rank in it; a search of another key does not count."""
        named = self._searches.get(search or "")
        if search and named and named[1] == key and tool in named[2]:
            return search, 1 + named[2].index(tool)
        identity = self._newest.get((key, tool), "")
        if identity and now - self._searches[identity][0] <= FOLLOW_SECONDS:
            return identity, 1 + self._searches[identity][2].index(tool)
        return (search, None) if search and named is None and _SEARCH.fullmatch(search) else (None, None)

    def _forget_oldest(self, key: str) -> None:
        """Forget the oldest search of a key."""
        search = self._held[key].popleft()
        _, _, tools = self._searches.pop(search)
        self._listed[key] -= 1 + len(tools)
        self._size -= 1 + len(tools)
        if not self._held[key]:
            del self._held[key], self._listed[key]
        for tool in tools:
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
