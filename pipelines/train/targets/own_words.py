"""Targets in the user's own words: the reductions of an utterance with which the frozen retriever finds most.

Such a target holds nothing of the catalogue, so that the rewriter transfers to other catalogues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.search import DEPTH, ToolSearch
from retrievers.fusion import with_raw
from retrievers.settings import RewriteFusion
from retrievers.types import Ranking, ToolId
from rewrite.rules import reduce_text, split_clauses, variants

FUSION = RewriteFusion("weighted", 0.5)
"""Reductions are scored as they will be used: fused with the raw query."""


def own_word_lines(
    search: ToolSearch,
    utterances: Mapping[str, str],
    raw: Mapping[str, Ranking],
    gold: Mapping[str, frozenset[ToolId]],
    max_lines: int,
) -> dict[str, tuple[str, ...]]:
    """The best reductions of each query, fused with the raw query; none if all of them harm it."""
    reductions = {query: variants(utterances[query]) for query in gold}
    rankings = search.search_lines(list(reductions.values()), [utterances[query] for query in gold], "reductions")
    lists = {
        query: dict(zip(lines, own, strict=True))
        for (query, lines), own in zip(reductions.items(), rankings, strict=True)
    }
    return {query: best_lines(utterances[query], raw[query], lists[query], gold[query], max_lines) for query in gold}


def best_lines(
    utterance: str, raw: Ranking, lists: Mapping[str, Ranking], gold: frozenset[ToolId], max_lines: int
) -> tuple[str, ...]:
    """The best of several sets of lines; the earlier of equally good ones. None if raw retrieval is better."""

    def score(lines: Sequence[str]) -> float:
        ids = with_raw(raw, [lists[line] for line in lines], DEPTH, FUSION).ids
        return sum(1.0 / (ids.index(tool) + 1) if tool in ids else 0.0 for tool in gold)

    parts = split_clauses(utterance)
    short = [small or part for part in parts if (small := reduce_text(part)) or part]
    reductions = variants(utterance)
    # For every tool the reduction that finds it best by itself, in the order of the utterance.
    best_per_tool = {max(reductions, key=lambda line: _reciprocal(lists[line], tool)) for tool in gold if reductions}
    candidates = [
        short,
        parts,
        [line for line in reductions if line in best_per_tool],
        *([line] for line in reductions),
    ]
    candidates = [lines[:max_lines] for lines in candidates if lines]
    if not candidates:
        return ()
    best = max(candidates, key=score)
    return tuple(dict.fromkeys(best)) if score(best) >= score(()) else ()


def _reciprocal(ranking: Ranking, tool: ToolId) -> float:
    return 1.0 / (ranking.ids.index(tool) + 1) if tool in ranking.ids else 0.0
