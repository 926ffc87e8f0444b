"""Several ranked lists into one. Hybrid search and query rewriting both come here.

interleave  takes places in turn: first of each list, second of each list, …; the right one when each list answers
            another need, as the lists of a rewrite do
rrf         sums weight / (rrf_k + place): rewards agreement, blind to scores
max         keeps a tool's best score: only for lists on one scale
weighted    sums weight x score, each list's scores stretched to 0..1 first

`with_raw` joins a raw query with its rewrite. Of the rewrite's lists a tool keeps its best place (or stretched score):
each line answers another need, so that being everybody's third choice is worth nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from retrievers.errors import BadInput
from retrievers.settings import FusionSettings, RewriteFusion
from retrievers.text import words
from retrievers.types import Ranking, ToolId, ranked

_SEPARATORS, _BLANK = re.compile(r"[\W_]+"), re.compile(r"\s")


def fuse(rankings: Sequence[Ranking], k: int, settings: FusionSettings) -> Ranking:
    """One ranking of at most k places out of several."""
    lists = [ranking.cut(max(k, settings.depth)) for ranking in rankings]
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


def interleave(rankings: Sequence[Ranking], k: int) -> Ranking:
    """The lists' places in turn, each tool once. A score is 1 / place, since the lists' own do not compare."""
    chosen: dict[ToolId, None] = {}
    for place in range(max(map(len, rankings), default=0)):
        for ranking in rankings:
            if place < len(ranking):
                chosen.setdefault(ranking.ids[place])
        if len(chosen) >= k:
            break
    ids = tuple(chosen)[:k]
    return Ranking(ids, tuple(1.0 / (place + 1) for place in range(len(ids))))


def reciprocal_rank(rankings: Sequence[Ranking], k: int, weights: Sequence[float], rrf_k: float) -> Ranking:
    """Reciprocal rank fusion (Cormack et al., 2009)."""
    scores: dict[ToolId, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for place, tool in enumerate(ranking.ids, 1):
            scores[tool] = scores.get(tool, 0.0) + weight / (rrf_k + place)
    return ranked(((tool, score) for tool, score in scores.items() if score > 0), k)


def maximum(rankings: Sequence[Ranking], k: int) -> Ranking:
    """Each tool's best score."""
    scores: dict[ToolId, float] = {}
    for ranking in rankings:
        for tool, score in ranking:
            scores[tool] = max(score, scores.get(tool, score))
    return ranked(scores.items(), k)


def weighted(rankings: Sequence[Ranking], k: int, weights: Sequence[float]) -> Ranking:
    """Weighted sum of scores stretched to 0..1 within each list; a tool a list does not hold gets nothing from it."""
    scores: dict[ToolId, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for tool, share in _stretched(ranking) if weight else ():
            scores[tool] = scores.get(tool, 0.0) + weight * share
    return ranked(scores.items(), k)


def with_raw(raw: Ranking, lists: Sequence[Ranking], k: int, settings: RewriteFusion) -> Ranking:
    """At most k places out of the raw query's list and those of its rewrite; without a rewrite, the raw list."""
    if not any(lists) or settings.raw == 1 or settings.is_sure(raw):
        return raw.cut(k)
    # The depth does not depend on k: the first five are the first five of a hundred.
    raw, lists = raw.cut(settings.depth), [each.cut(settings.depth) for each in lists if each]
    if settings.method == "interleave":
        both = [raw, *lists] if settings.raw >= 0.5 else [*lists, raw]
        return interleave(both if settings.raw else lists, k)
    score = _stretched if settings.method == "weighted" else lambda each: _places(each, settings.rrf_k)
    best: dict[ToolId, float] = {}
    for each in lists:
        for tool, value in score(each):
            best[tool] = max(value, best.get(tool, 0.0))
    totals = {tool: (1 - settings.raw) * value for tool, value in best.items()}
    for tool, value in score(raw) if settings.raw else ():
        totals[tool] = totals.get(tool, 0.0) + settings.raw * value
    return ranked(totals.items(), k)


def _places(ranking: Ranking, rrf_k: float) -> Iterable[tuple[ToolId, float]]:
    return ((tool, 1.0 / (rrf_k + place)) for place, tool in enumerate(ranking.ids, 1))


def _stretched(ranking: Ranking) -> Iterable[tuple[ToolId, float]]:
    """Scores stretched to 0..1; the last place keeps a little, so that being found at all counts."""
    low, high = min(ranking.scores, default=0.0), max(ranking.scores, default=0.0)
    for tool, score in ranking:
        yield tool, 1.0 if high == low else 0.01 + 0.99 * (score - low) / (high - low)


class ExactNames:
    """Finds tools that the utterance names outright, so that they can rank first.

    A tool is named when the whole utterance is its name, however spelled (`find symbol` for `find_symbol`), or when
    its id, or a name that no prose contains by chance (`find_symbol`, `getWeather`, `v2/quotes`), stands in it.
    A plain word such as `search` inside a sentence names nothing.
    """

    def __init__(self, tools: Iterable[tuple[ToolId, str]]) -> None:
        """Takes ids and names. What is costly to tell of a name is left until an utterance comes near it."""
        self._names = dict(tools)
        self._near: _Table = {}
        self._literal: _Table = {}
        for tool, name in self._names.items():
            _put(self._near, _squeezed(name), tool)
            for literal in (tool, name):
                if not _BLANK.search(literal):
                    _put(self._literal, literal.casefold(), tool)
        self._near.pop("", None)

    def find(self, utterance: str) -> list[ToolId]:
        """Ids of the tools named, in the order of their ids."""
        near = _get(self._near, _squeezed(utterance))
        spelling = _spelling(utterance) if near else ""
        named = {tool for tool in near if _spelling(self._names[tool]) == spelling}
        for piece in re.split(r"""[\s,;"'`()\[\]{}<>]+""", utterance.casefold()):
            for literal in {piece, piece.strip(".:!?")}:
                for tool in _get(self._literal, literal):
                    spelled = (text for text in (tool, self._names[tool]) if text.casefold() == literal)
                    named.update(tool for text in spelled if _identifier_like(text))
        return sorted(named)

    def promote(self, utterance: str, ranking: Ranking, k: int) -> Ranking:
        """The ranking with named tools in front, scored above all others."""
        named = self.find(utterance)
        if not named:
            return ranking.cut(k)
        top = 1.0 + (ranking.scores[0] if ranking else 0.0)
        rest = [hit for hit in ranking if hit.tool_id not in set(named)]
        return Ranking(
            (*named, *(hit.tool_id for hit in rest))[:k], (*(top for _ in named), *(hit.score for hit in rest))[:k]
        )


class LayeredNames(ExactNames):
    """The same over several tables, one of which holds a tool as it is now: a new tool needs a small table only."""

    def __init__(self, tables: Sequence[ExactNames], holder: Callable[[ToolId], int | None]) -> None:
        """`holder` says which table holds a tool; None: none of them."""
        self._tables, self._holder = tables, holder

    def find(self, utterance: str) -> list[ToolId]:
        """Ids of the tools named, in the order of their ids."""
        found = ((place, tool) for place, table in enumerate(self._tables) for tool in table.find(utterance))
        return sorted({tool for place, tool in found if self._holder(tool) == place})


def _spelling(text: str) -> str:
    return " ".join(words(text)).casefold()


# Mostly one tool a key: a list each would wake the garbage collector for a third of a second at 50,000 tools.
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


def _squeezed(text: str) -> str:
    """The same for any two texts of the same spelling, and quick to make."""
    return _SEPARATORS.sub("", text).casefold()


def _identifier_like(name: str) -> bool:
    """True for names of several words written without spaces."""
    return len(words(name)) > 1 and not re.search(r"\s", name)
