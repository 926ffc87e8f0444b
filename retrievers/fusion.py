"""Fusion of several ranked lists into one, for hybrid search and query rewriting.

interleave  takes ranks in turn: first of each list, second of each list, …; right when each list answers another need,
            as the lists of a rewrite do
rrf         sums weight / (rrf_k + rank): rewards agreement, ignores scores
max         keeps a tool's best score: only for lists on one scale
weighted    sums weight x score, each list's scores scaled to 0..1 first
add         sums weight x score, each in the unit of its retriever: a list counts as much as it has to say

`with_raw` joins a raw query with its rewrite. Of the rewrite's lists a tool keeps its best rank (or score): each line
answers another need, so being third in every list is worth nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from retrievers.errors import BadInput
from retrievers.settings import FusionSettings, RewriteFusion
from retrievers.text import words
from retrievers.types import Ranking, ToolId, ranked

DEPTH = 100  # ranks of each list that are looked at
_SEPARATORS, _BLANK = re.compile(r"[\W_]+"), re.compile(r"\s")


def fuse(
    rankings: Sequence[Ranking], k: int, settings: FusionSettings, units: Sequence[float] | None = None
) -> Ranking:
    """One ranking of at most k tools out of several; `units`: of the scores, for `add`."""
    lists = [ranking.cut(max(k, DEPTH)) for ranking in rankings]
    weights = settings.weights or (1.0,) * len(lists)
    if len(weights) != len(lists):
        raise BadInput(f"{len(weights)} fusion weights for {len(lists)} lists")
    match settings.method:
        case "interleave":
            return interleave(lists, k)
        case "rrf":
            return reciprocal_rank(lists, k, weights, settings.rrf_k)
        case "max":
            return maximum(lists, k)
        case "weighted":
            return weighted(lists, k, weights)
        case "add":
            return add_scores(lists, k, units or (1.0,) * len(lists), weights)


def add_scores(rankings: Sequence[Ranking], k: int, units: Sequence[float], weights: Sequence[float] = ()) -> Ranking:
    """Sum of scores, each in the unit of its list, so that a list counts as much as it has to say about the query.

    A tool that a list lacks counts as the last of its first hundred.
    """
    totals: dict[ToolId, float] = {}
    for ranking, unit, weight in zip(rankings, units, weights or (1.0,) * len(units), strict=True):
        for tool, score in _excess(ranking):
            totals[tool] = totals.get(tool, 0.0) + weight * score / unit
    return ranked(((tool, round(total, 9)) for tool, total in totals.items()), k)


def _excess(ranking: Ranking) -> Iterable[tuple[ToolId, float]]:
    """Scores above that of the hundredth tool; of a shorter list, above 0."""
    lowest = ranking.scores[DEPTH - 1] if len(ranking) >= DEPTH else min((0.0, *ranking.scores[-1:]))
    for tool, score in ranking:
        yield tool, max(score - lowest, 0.0)


def interleave(rankings: Sequence[Ranking], k: int) -> Ranking:
    """The lists' ranks in turn, each tool once. A score is 1 / rank, since the lists' own scores do not compare."""
    chosen: dict[ToolId, None] = {}
    for index in range(max(map(len, rankings), default=0)):
        for ranking in rankings:
            if index < len(ranking):
                chosen.setdefault(ranking.ids[index])
        if len(chosen) >= k:
            break
    ids = tuple(chosen)[:k]
    return Ranking(ids, tuple(1.0 / rank for rank in range(1, len(ids) + 1)))


def reciprocal_rank(rankings: Sequence[Ranking], k: int, weights: Sequence[float], rrf_k: float) -> Ranking:
    """Reciprocal rank fusion (Cormack et al., 2009)."""
    scores: dict[ToolId, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, tool in enumerate(ranking.ids, 1):
            scores[tool] = scores.get(tool, 0.0) + weight / (rrf_k + rank)
    return ranked(((tool, score) for tool, score in scores.items() if score > 0), k)


def maximum(rankings: Sequence[Ranking], k: int) -> Ranking:
    """Each tool's best score."""
    scores: dict[ToolId, float] = {}
    for ranking in rankings:
        for tool, score in ranking:
            scores[tool] = max(score, scores.get(tool, score))
    return ranked(scores.items(), k)


def weighted(rankings: Sequence[Ranking], k: int, weights: Sequence[float]) -> Ranking:
    """Weighted sum of scores scaled to 0..1 within each list; a tool gets nothing from a list without it."""
    scores: dict[ToolId, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for tool, score in _scaled_scores(ranking) if weight else ():
            scores[tool] = scores.get(tool, 0.0) + weight * score
    return ranked(scores.items(), k)


def with_raw(raw: Ranking, lists: Sequence[Ranking], k: int, settings: RewriteFusion) -> Ranking:
    """At most k tools out of the raw query's list and those of its rewrite; without a rewrite, the raw list."""
    if not any(lists) or settings.raw == 1 or settings.skips_rewrite(raw):
        return raw.cut(k)
    # The depth does not depend on k: the first five are the first five of a hundred.
    raw, lists = raw.cut(DEPTH), [ranking.cut(DEPTH) for ranking in lists if ranking]
    if settings.method == "interleave":
        both = [raw, *lists] if settings.raw >= 0.5 else [*lists, raw]
        return interleave(both if settings.raw else lists, k)

    def scores(ranking: Ranking) -> Iterable[tuple[ToolId, float]]:
        if settings.method != "rrf":
            return _scaled_scores(ranking) if settings.method == "weighted" else _excess(ranking)
        return ((tool, 1.0 / (settings.rrf_k + rank)) for rank, tool in enumerate(ranking.ids, 1))

    best: dict[ToolId, float] = {}
    for ranking in lists:
        for tool, score in scores(ranking):
            best[tool] = max(score, best.get(tool, 0.0))
    totals = {tool: (1 - settings.raw) * score for tool, score in best.items()}
    for tool, score in scores(raw) if settings.raw else ():
        totals[tool] = totals.get(tool, 0.0) + settings.raw * score
    return ranked(totals.items(), k)


def _scaled_scores(ranking: Ranking) -> Iterable[tuple[ToolId, float]]:
    """Scores scaled to 0.01..1: the last tool keeps a little, so that being in the list counts."""
    low, high = min(ranking.scores, default=0.0), max(ranking.scores, default=0.0)
    for tool, score in ranking:
        yield tool, 1.0 if high == low else 0.01 + 0.99 * (score - low) / (high - low)


class ExactNames:
    """Finds tools that the utterance names, so that they can rank first.

    A tool is named when the whole utterance is its name in any spelling (`find symbol` for `find_symbol`), or when the
    utterance contains its id, or a name that no prose contains by chance (`find_symbol`, `getWeather`, `v2/quotes`).
    A plain word such as `search` inside a sentence names nothing.
    """

    def __init__(self, tools: Iterable[tuple[ToolId, str]]) -> None:
        """Takes ids and names. The costly spelling of a name is left until an utterance comes near it."""
        self._names = dict(tools)
        self._near: _Table = {}
        self._literal: _Table = {}
        for tool, name in self._names.items():
            _put(self._near, _squeeze(name), tool)
            for literal in (tool, name):
                if not _BLANK.search(literal):
                    _put(self._literal, literal.casefold(), tool)
        self._near.pop("", None)

    def find(self, utterance: str) -> list[ToolId]:
        """Ids of the tools named, sorted."""
        near = _get(self._near, _squeeze(utterance))
        spelling = _spelling(utterance) if near else ""
        named = {tool for tool in near if _spelling(self._names[tool]) == spelling}
        pieces = set(re.split(r"""[\s,;"'`()\[\]{}<>]+""", utterance.casefold()))
        for literal in (pieces | {piece.strip(".:!?") for piece in pieces}) & self._literal.keys():
            for tool in _get(self._literal, literal):
                spelled = (text for text in (tool, self._names[tool]) if text.casefold() == literal)
                named.update(tool for text in spelled if len(words(text)) > 1 and not _BLANK.search(text))
        return sorted(named)

    def promote(self, utterance: str, ranking: Ranking, k: int) -> Ranking:
        """The ranking with named tools in front, scored above all others."""
        named = self.find(utterance)
        if not named:
            return ranking.cut(k)
        top = 1.0 + (ranking.scores[0] if ranking else 0.0)
        rest = ranking.without(named)
        certain = (1.0,) * len(named) if ranking.probabilities else ()
        scores = (*(top for _ in named), *rest.scores)
        return Ranking((*named, *rest.ids), scores, (*certain, *rest.probabilities)).cut(k)


class LayeredNames(ExactNames):
    """Exact names over several tables, so that a new tool needs only a small new table."""

    def __init__(self, tables: Sequence[ExactNames], current_table: Callable[[ToolId], int | None]) -> None:
        """`current_table` returns the index of the table that holds a tool as it is now; None: none does."""
        self._tables, self._current_table = tables, current_table

    def find(self, utterance: str) -> list[ToolId]:
        named = ((index, tool) for index, table in enumerate(self._tables) for tool in table.find(utterance))
        return sorted({tool for index, tool in named if self._current_table(tool) == index})


def _spelling(text: str) -> str:
    return " ".join(words(text)).casefold()


# Mostly one tool per key: a list each would start the garbage collector for a third of a second at 50,000 tools.
_Table = dict[str, ToolId | list[ToolId]]


def _put(table: _Table, key: str, tool: ToolId) -> None:
    held = table.setdefault(key, tool)
    if isinstance(held, list):
        held.append(tool)
    elif held != tool:
        table[key] = [held, tool]


def _get(table: _Table, key: str) -> list[ToolId]:
    held = table.get(key, [])
    return held if isinstance(held, list) else [held]


def _squeeze(text: str) -> str:
    """Fold text so that equal spellings give equal results; faster than `_spelling`."""
    return _SEPARATORS.sub("", text).casefold()
