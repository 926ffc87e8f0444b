"""Targets in the user's own words: of an utterance's reductions those with which the frozen retriever finds most.

Nothing of a catalogue is in such a target, so that what is learned from some catalogues holds for others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.search import DEPTH, ToolSearch
from retrievers.fusion import with_raw
from retrievers.settings import RewriteFusion
from retrievers.types import Ranking, ToolId
from rewrite.rules import reduce_text, split_clauses, variants

JUDGED_AT = RewriteFusion("weighted", 0.5)
"""Reductions are judged as they will be used: beside the raw query."""


def own_words(
    search: ToolSearch,
    utterances: Mapping[str, str],
    raw: Mapping[str, Ranking],
    gold: Mapping[str, frozenset[ToolId]],
    max_lines: int,
) -> dict[str, tuple[str, ...]]:
    """query -> the reductions that serve it best beside the raw query; none where every one of them harms."""
    every = list(dict.fromkeys(each for query in gold for each in variants(utterances[query])))
    lists = dict(zip(every, search.retrieve(every, DEPTH, "reductions"), strict=True))
    return {query: best_lines(utterances[query], raw[query], lists, gold[query], max_lines) for query in gold}


def best_lines(
    utterance: str, raw: Ranking, lists: Mapping[str, Ranking], gold: frozenset[ToolId], max_lines: int
) -> tuple[str, ...]:
    """The best of several sets of lines; of equally good ones the earlier. Raw retrieval must not be better."""

    def goodness(lines: Sequence[str]) -> float:
        found = with_raw(raw, [lists[line] for line in lines], DEPTH, JUDGED_AT).ids
        return sum(1.0 / (found.index(tool) + 1) if tool in found else 0.0 for tool in gold)

    parts = split_clauses(utterance)
    short = [small or part for part in parts if (small := reduce_text(part)) or part]
    each = variants(utterance)
    # For every tool the reduction that finds it best by itself, in the order of the utterance.
    picks = {max(each, key=lambda line: _reciprocal(lists[line], tool)) for tool in gold} if each else set()
    tried = [short, parts, [line for line in each if line in picks], *([line] for line in each)]
    tried = [lines[:max_lines] for lines in tried if lines]
    if not tried:
        return ()
    best = max(tried, key=goodness)
    return tuple(dict.fromkeys(best)) if goodness(best) >= goodness(()) else ()


def _reciprocal(ranking: Ranking, tool: ToolId) -> float:
    return 1.0 / (ranking.ids.index(tool) + 1) if tool in ranking.ids else 0.0
