"""Weak evidence from a gateway's log of calls, weighed per query and tool, each key once per kind of evidence:

+1          a call that followed a search and succeeded
+retried    a call that succeeded after a second search right after the first: for the first query
-failed     a call that failed
-ignored    a tool of the first ranks that was passed over: another was called, or none

A call is a model's choice, so three rules bound what one caller can teach: a tool counts once enough keys have called
it with success, it needs half the support that the best tool of the query has, and one key contributes a limited
number of examples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipelines.data.dataset import stable_hash
from pipelines.renew.call_links import CallLog, LoggedCall, LoggedSearch
from pipelines.renew.settings import Sources

FAILURES = ("tool_error", "upstream_error")
"""Outcomes that speak against a tool; the others are failures of the connection or of the caller."""
SHOWN = 3
"""First ranks that a caller is assumed to have read."""
RETRY_SECONDS = 60.0
"""A second search of a key within this time may be the same request in other words."""
MIN_SHARED = 0.2
"""Share of the shorter text's words that both searches must have for that."""
AGREEMENT = 0.5
"""Share of the support of the query's best tool that a tool needs."""
Pair = tuple[str, str]
"""A normalized query and a tool."""


class CallEvidence:
    """Weighs the searches and calls of all logs."""

    def __init__(self, sources: Sources, left_out: Counter[str]) -> None:
        self._sources, self._left_out = sources, left_out
        self._log = CallLog(sources, left_out)
        self._searches: list[LoggedSearch] = []
        self._newest: dict[str, LoggedSearch] = {}
        self._successes: defaultdict[Pair, set[str]] = defaultdict(set)
        """Keys by query and tool, as in the following."""
        self._retried: defaultdict[Pair, set[str]] = defaultdict(set)
        self._failures: defaultdict[Pair, set[str]] = defaultdict(set)
        self._texts: dict[str, str] = {}

    def read(self, rows: Iterable[Any]) -> None:
        """Take the records of one file."""
        self._log.read(rows)

    def _take_search(self, search: LoggedSearch) -> None:
        before = self._newest.get(search.key)
        if before is not None and not before.succeeded and _is_retry(before, search):
            search.retries = before
        self._newest[search.key] = search
        self._searches.append(search)
        self._texts.setdefault(search.query, search.text)

    def _take_call(self, call: LoggedCall) -> None:
        search = call.search
        search.called.add(call.tool)
        if call.outcome == "ok":
            search.succeeded = True
            self._successes[search.query, call.tool].add(call.key)
            earlier = search.retries
            while earlier is not None:
                self._retried[earlier.query, call.tool].add(call.key)
                earlier = earlier.retries
        elif call.outcome in FAILURES:
            self._failures[search.query, call.tool].add(call.key)
            self._left_out["failed calls"] += 1

    def examples(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Queries with the tools that the evidence supports."""
        for event in self._log.events():
            if isinstance(event, LoggedSearch):
                self._take_search(event)
            else:
                self._take_call(event)
        if unused := sum(not search.called for search in self._searches):
            self._left_out["searches without a call"] += unused
        support = self._within_shares(self._support())
        best: defaultdict[str, float] = defaultdict(float)
        for (query, _), value in support.items():
            best[query] = max(best[query], value)
        tools: defaultdict[str, list[str]] = defaultdict(list)
        for (query, tool), value in support.items():
            if value < AGREEMENT * best[query]:
                self._left_out["tools that fewer agree on"] += 1
            else:
                tools[query].append(tool)
        yield from ((self._texts[query], tuple(tools[query])) for query in sorted(tools, key=stable_hash))

    def _support(self) -> dict[Pair, float]:
        """Sum of the weights of all pairs that have enough of it."""
        weights = self._sources.weights
        ignored: defaultdict[Pair, set[str]] = defaultdict(set)
        for search in self._searches:
            for tool in _passed_over(search):
                ignored[search.query, tool].add(search.key)
        callers: defaultdict[str, set[str]] = defaultdict(set)
        for (_, tool), keys in self._successes.items():
            callers[tool] |= keys
        support = {}
        for pair in self._successes.keys() | self._retried.keys():
            value = (
                len(self._successes.get(pair, ()))
                + weights.retried * len(self._retried.get(pair, ()))
                - weights.failed * len(self._failures.get(pair, ()))
                - weights.ignored * len(ignored.get(pair, ()))
            )
            if len(callers[pair[1]]) < self._sources.min_callers:
                self._left_out["tools that too few keys call"] += 1
            elif value < weights.min_support:
                self._left_out["tools that more speaks against"] += 1
            else:
                support[pair] = value
        return support

    def _within_shares(self, support: Mapping[Pair, float]) -> dict[Pair, float]:
        """Pairs of which at least one key has not reached its share, in the order of a hash."""
        limit, used = self._sources.max_per_key, Counter[str]()
        within = {}
        for pair in sorted(support, key=lambda pair: stable_hash("\0".join(pair))):
            owners = self._successes.get(pair, set()) | self._retried.get(pair, set())
            if limit and all(used[key] >= limit for key in owners):
                self._left_out["beyond a key's share"] += 1
                continue
            used.update(owners)
            within[pair] = support[pair]
        return within


def _is_retry(before: LoggedSearch, search: LoggedSearch) -> bool:
    """True if the second search may be the first request in other words, and not another request."""
    first, second = set(before.query.split()), set(search.query.split())
    shared = len(first & second) / max(1, min(len(first), len(second)))
    return 0 <= search.time - before.time <= RETRY_SECONDS and first != second and shared >= MIN_SHARED


def _passed_over(search: LoggedSearch) -> tuple[str, ...]:
    """Tools that the caller saw and did not call: those above the first called one, or all if none was called."""
    shown = search.tools[:SHOWN]
    called = [rank for rank, tool in enumerate(shown) if tool in search.called]
    return shown[: called[0]] if called else shown
