"""Weak evidence from a gateway's log of calls: a call that followed a search and succeeded.

A call is a model's choice, so three rules bound what one caller can teach: a tool counts once enough keys have called
it with success, a tool that failed for a query at least as often as it succeeded does not count for that query, and
one key contributes a limited number of queries.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from pipelines.data.dataset import stable_hash
from pipelines.data.dataset_writer import normalize_utterance
from pipelines.renew.settings import Sources

FAILURES = ("tool_error", "upstream_error")
"""Outcomes that speak against a tool; the others are failures of the connection or of the caller."""


class CallEvidence:
    """Searches and calls of a log, read line by line."""

    def __init__(self, sources: Sources, left_out: Counter[str]) -> None:
        self._sources, self._left_out = sources, left_out
        self._queries: dict[str, str] = {}
        self._called: set[str] = set()
        self._successes: dict[tuple[str, str], set[str]] = defaultdict(set)
        """Keys by query and tool."""
        self._failures: Counter[tuple[str, str]] = Counter()
        self._texts: dict[str, str] = {}

    def read(self, rows: Iterable[Any]) -> None:
        """Take the records of one file, oldest file first."""
        for row in rows:
            if not isinstance(row, dict) or row.get("kind") not in ("search", "call"):
                self._left_out["lines that are no search or call"] += 1
            elif self._sources.keys and row.get("key") not in self._sources.keys:
                self._left_out["other keys"] += 1
            elif row["kind"] == "search":
                if isinstance(row.get("query"), str):
                    self._queries[str(row.get("search"))] = row["query"]
                else:
                    self._left_out["searches without a query (`calls.log_queries`)"] += 1
            else:
                self._take_call(row)

    def _take_call(self, row: dict[str, Any]) -> None:
        search = str(row.get("search"))
        query = self._queries.get(search)
        if query is None:
            self._left_out["calls without a search"] += 1
            return
        self._called.add(search)
        pair = normalize_utterance(query), str(row.get("tool"))
        self._texts.setdefault(pair[0], query)
        if row.get("outcome") == "ok":
            self._successes[pair].add(str(row.get("key")))
        elif row.get("outcome") in FAILURES:
            self._failures[pair] += 1
            self._left_out["failed calls"] += 1

    def examples(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Queries with the tools that the evidence supports."""
        if unused := len(self._queries.keys() - self._called):
            self._left_out["searches without a call"] += unused
        callers: dict[str, set[str]] = defaultdict(set)
        for (_, tool), keys in self._successes.items():
            callers[tool] |= keys
        tools: dict[str, list[str]] = defaultdict(list)
        owners: dict[str, set[str]] = defaultdict(set)
        for (query, tool), keys in self._successes.items():
            if len(callers[tool]) < self._sources.min_callers:
                self._left_out["tools that too few keys call"] += 1
            elif self._failures[query, tool] >= len(keys):
                self._left_out["tools that fail as often as they succeed"] += 1
            else:
                tools[query].append(tool)
                owners[query] |= keys
        yield from ((self._texts[query], tuple(tools[query])) for query in self._within_shares(owners))

    def _within_shares(self, owners: dict[str, set[str]]) -> Iterator[str]:
        """Queries of which at least one key has not reached its share, in the order of a hash."""
        used: Counter[str] = Counter()
        for query in sorted(owners, key=stable_hash):
            limit = self._sources.max_per_key
            if limit and all(used[key] >= limit for key in owners[query]):
                self._left_out["beyond a key's share"] += 1
                continue
            used.update(owners[query])
            yield query
