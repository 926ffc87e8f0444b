"""Reads gateways' logs of calls, and finds the search that each call followed.

A gateway knows only its own searches. Of several replicas, one may answer the search and another the call, so the logs
of all are read together, by time. A call follows the search that it names, if that was its key's and listed the tool;
else the newest search of its key that did, within ten minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pipelines.data.dataset_writer import normalize_utterance
from pipelines.renew.settings import Sources

FOLLOW_SECONDS = 600.0
"""A call that names no search follows one within this time."""


@dataclass(slots=True)
class LoggedSearch:
    """A search of a log, and the calls that followed it so far."""

    text: str
    key: str
    time: float
    tools: tuple[str, ...]
    retries: LoggedSearch | None = None
    """The search that this one repeats in other words."""
    called: set[str] = field(default_factory=set)
    succeeded: bool = False

    @property
    def query(self) -> str:
        return normalize_utterance(self.text)


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """A call of a log, and the search that it followed."""

    search: LoggedSearch
    key: str
    tool: str
    outcome: str


class CallLog:
    """Searches and calls of all logs."""

    def __init__(self, sources: Sources, left_out: Counter[str]) -> None:
        self._sources, self._left_out = sources, left_out
        self._rows: list[tuple[float, dict[str, Any]]] = []

    def read(self, rows: Iterable[Any]) -> None:
        """Take the records of one file."""
        for row in rows:
            if not isinstance(row, dict) or row.get("kind") not in ("search", "call"):
                self._left_out["lines that are no search or call"] += 1
            elif self._sources.keys and row.get("key") not in self._sources.keys:
                self._left_out["other keys"] += 1
            elif row["kind"] == "search" and not isinstance(row.get("query"), str):
                self._left_out["searches without a query (`calls.log_queries`)"] += 1
            else:
                then = row.get("time")
                self._rows.append((float(then) if isinstance(then, int | float) else 0.0, row))

    def events(self) -> Iterator[LoggedSearch | LoggedCall]:
        """Searches, and the calls that followed one, by time."""
        named: dict[str, LoggedSearch] = {}
        newest: dict[tuple[str, str], LoggedSearch] = {}
        for time, row in sorted(self._rows, key=lambda pair: pair[0]):
            key, identity = str(row.get("key")), str(row.get("search"))
            if row["kind"] == "search":
                tools = row.get("tools")
                listed = tuple(map(str, tools)) if isinstance(tools, list) else ()
                search = named[identity] = LoggedSearch(row["query"], key, time, listed)
                newest |= dict.fromkeys(((key, tool) for tool in listed), search)
                yield search
                continue
            tool = str(row.get("tool"))
            followed = named.get(identity)
            if followed is None or followed.key != key or tool not in followed.tools:
                followed = newest.get((key, tool))
                if followed is not None and time - followed.time > FOLLOW_SECONDS:
                    followed = None
            if followed is None:
                self._left_out["calls without a search"] += 1
            elif (limit := self._sources.max_rank) and followed.tools.index(tool) >= limit:
                self._left_out["calls of tools below `max_rank`"] += 1
            else:
                yield LoggedCall(followed, key, tool, str(row.get("outcome")))
