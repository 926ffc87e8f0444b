"""Names whose words cannot be matched: none, only generic ones, or several run together.

The catalogue is the dictionary. A long run of letters counts as several words when it can be cut into words that the
catalogue's descriptions use, or begins with a verb that no long English word begins with (`get…`, `fetch…`), or is
longer than English words are. It counts as one word when a description of some other tool uses it: that keeps
`cryptocurrency` and `recommendations` out of the findings.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from retrievers.lint.finding import Finding, Severity, quoted
from retrievers.lint.vocabulary import GENERIC, MAX_CHARACTERS, bare, informative, speakable
from retrievers.text import words
from retrievers.types import Tool

MIN_RUN = 12  # letters; shorter runs are words too often (`screenshot`, `timestamp`) and hide less

MAX_WORD = 20  # letters; `internationalization` has as many

_SEPARATORS = re.compile(r"[\W_]+")
_RUN = re.compile(f"[a-z]{{{MIN_RUN},}}")
_VERBS = ("get", "fetch", "find", "create", "update", "delete", "search", "list", "remove")
# Two and three letters fit into anything, so only these count as words inside a run.
_GLUE = frozenset(
    """get set add put all new top by to in of on at as id ids is or for and the one day api url pdf""".split()
)
# `multilingual` and `downloadable` are one word each, although both halves are.
_BEGINNINGS = frozenset(
    """anti auto bio counter crypto cyber electro geo hyper inter macro mega meta micro mini mono multi neuro non
    over para photo poly post pre pseudo psycho radio semi sub super tele thermo trans ultra under uni""".split()
)
_ENDINGS = frozenset("""able ably hood less like ment ness ship ties tion tions ward wards ware wise""".split())


def unsplittable(tools: Sequence[Tool]) -> Iterator[Finding]:
    """Tools whose name gives a query no word, or only with words run together."""
    used = _used(tools)
    usable = {word: count for word, count in used.items() if count > 1 and (len(word) > 3 or word in _GLUE)}
    for tool in tools:
        message = _complaint(tool, used, usable)
        if message:
            # With a good description the tool is still found; without, the name was all there was.
            severity: Severity = "hint" if len(informative(tool.description[:MAX_CHARACTERS])) >= 3 else "warning"
            yield Finding("unsplittable", (tool.id,), message, severity)


def _used(tools: Sequence[Tool]) -> Counter[str]:
    """Number of descriptions with a word that is not in the tool's own name."""
    used: Counter[str] = Counter()
    for tool in tools:
        named = {word.casefold() for word in words(tool.name)}
        used.update({word.casefold() for word in words(tool.description)} - named)
    return used


def _complaint(tool: Tool, used: Mapping[str, int], usable: Mapping[str, int]) -> str:
    """The complaint about a name; "" for none."""
    parts = words(tool.name)
    speakable_words = [word for word in parts if speakable(word) or used.get(word.casefold(), 0) > 1]
    if not speakable_words:
        return f"the name {quoted(tool.name)} holds no word a user would say: name the tool after what it does"
    # A rare abbreviation (`k8s_list`) or a third generic word (`send_get_request`) begins to say something.
    telling = {bare(word) for word in parts if len(bare(word)) > 1 or not word.isascii()}
    if telling <= GENERIC and len(telling) < 3:
        return f"the name {quoted(tool.name)} could belong to any tool: add what it is about, as in `search_flights`"
    for run in (run for word in parts for run in _RUN.findall(word.casefold())):
        if run in used or run in _spelled_with_humps(tool):
            continue
        pieces = _cut(run, usable)
        if pieces:
            return (
                f"the name {quoted(tool.name)} runs words together: write {quoted('_'.join(pieces))} to make them match"
            )
        if run.startswith(_VERBS) or len(run) > MAX_WORD:
            return f"the name {quoted(tool.name)} runs words together: put `_` between them to make them match"
    return ""


def _spelled_with_humps(tool: Tool) -> set[str]:
    """Folded words whose parts are indexed because the tool's text also has them as `GetEventTypes`."""
    texts = f"{tool.name} {tool.description} {tool.provider}"
    return {piece.casefold() for piece in _SEPARATORS.split(texts) if len(words(piece)) > 1}


def _cut(run: str, usable: Mapping[str, int]) -> list[str]:
    """The likeliest cut of a run into several usable words; empty for none."""
    total = math.log(1 + sum(usable.values()))
    best: list[tuple[float, list[str]] | None] = [(0.0, []), *([None] * len(run))]
    for end in range(1, len(run) + 1):
        for start in range(max(0, end - MAX_WORD), end):
            before, piece = best[start], run[start:end]
            if before is None or piece == run or not (piece in usable or piece in _GLUE):
                continue
            cost = before[0] + total - math.log(usable.get(piece, 1))
            here = best[end]
            if here is None or cost < here[0]:
                best[end] = (cost, [*before[1], piece])
    whole = best[-1]
    if whole is None or whole[1][0] in _BEGINNINGS or whole[1][-1] in _ENDINGS:
        return []
    return whole[1]
