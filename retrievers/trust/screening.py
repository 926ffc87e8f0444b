"""What is looked at before a tool from outside comes in. Fast enough for every change: the index finds the neighbours.

hidden      control characters, invisible text, orders to the model
stuffed     a heap of keywords in place of a description
imitation   reads like a tool of another provider
flood       one of several newcomers that read alike
hub         its vector is near to everything
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from retrievers.lint.finding import Finding, quoted
from retrievers.lint.hidden import hidden, stuffed
from retrievers.text import document, tokens
from retrievers.types import Tool

IMITATION = 0.85
"""The cosine of two tools' words from which on one imitates the other."""
CONTAINED = 0.95
"""Or the share of the other's words, by weight, that this one has: a copy with praise around it."""
FEWEST_WORDS = 6
"""Different words that the other must have for that: `get user` is in many descriptions."""
FLOOD_COSINE = 0.65
"""The same for newcomers among each other, of whom it takes several."""
FLOOD = 3
"""Newcomers of different providers that read alike. Those of one provider often do (a line about the server in every
description), and what they may take of a ranking is capped anyway."""
NEIGHBOURS = 20
"""Tools of the catalogue that a newcomer is compared with."""
MOST_READ = 2_000
"""Tools that the weights of words are taken from."""

Near = Callable[[Sequence[str]], list[list[Tool]]]
"""For each text the nearest tools of the catalogue."""


@dataclass(frozen=True, slots=True)
class _Seen:
    tool: Tool
    weights: dict[str, float]
    norm: float


class Screening:
    """Looks at newcomers to one catalogue."""

    def __init__(self, catalogue: Sequence[Tool]) -> None:
        """`catalogue`: its tools, or an even draw of them."""
        some = catalogue[:: max(1, -(-len(catalogue) // MOST_READ))]
        self._count = len(some)
        self._frequency = Counter(word for tool in some for word in set(_words(tool)))

    def screen(self, tools: Sequence[Tool], near: Near, is_new: Callable[[Tool], bool]) -> list[Finding]:
        """Findings about tools that want to come in. `is_new`: whether a tool's provider has not been vetted."""
        found = list(hidden(tools))
        fresh = [tool for tool in tools if is_new(tool)]
        if not fresh:
            return found
        found.extend(stuffed(fresh))
        seen = {tool.id: self._seen(tool) for tool in fresh}
        carriers: dict[str, list[str]] = {}
        for one in seen.values():
            for word in one.weights:
                carriers.setdefault(word, []).append(one.tool.id)
        for tool, neighbours in zip(fresh, near([f"{tool.name}\n{tool.description}" for tool in fresh]), strict=True):
            one = seen[tool.id]
            others = {other.id: seen.get(other.id) or self._seen(other) for other in neighbours if other.id != tool.id}
            found.extend(_imitation(one, others.values()))
            newcomers = {other: each for other, each in others.items() if is_new(each.tool)}
            newcomers |= {other: seen[other] for other in _sharing(one, carriers) if other != tool.id}
            found.extend(_flood(one, newcomers.values()))
        return found

    def _seen(self, tool: Tool) -> _Seen:
        counts = Counter(_words(tool))
        weights = {
            word: (1 + math.log(count)) * (math.log((1 + self._count) / (1 + self._frequency[word])) + 1)
            for word, count in counts.items()
        }
        return _Seen(tool, weights, math.sqrt(sum(weight * weight for weight in weights.values())))


def _sharing(one: _Seen, carriers: dict[str, list[str]]) -> set[str]:
    """Newcomers of the same change that have one of this one's weightiest words."""
    heaviest = sorted(one.weights, key=lambda word: (-one.weights[word], word))[:8]
    return {tool for word in heaviest for tool in carriers[word][:200]}


def _imitation(one: _Seen, others: Iterable[_Seen]) -> list[Finding]:
    for other in others:
        if other.tool.provider.casefold() == one.tool.provider.casefold():
            continue
        if _cosine(one, other) >= IMITATION or _contained(one, other) >= CONTAINED:
            message = (
                f"{quoted(one.tool.name)} of {quoted(one.tool.provider)} reads like {quoted(other.tool.name)} of "
                f"{quoted(other.tool.provider)}: approve it if it is another tool"
            )
            return [Finding("imitation", (one.tool.id,), message, "warning")]
    return []


def _flood(one: _Seen, newcomers: Iterable[_Seen]) -> list[Finding]:
    own = one.tool.provider.casefold()
    alike = [
        other for other in newcomers if other.tool.provider.casefold() != own and _cosine(one, other) >= FLOOD_COSINE
    ]
    if len(alike) < FLOOD - 1:
        return []
    message = f"{quoted(one.tool.name)} is one of {len(alike) + 1} newcomers that read alike: approve one of them"
    return [Finding("flood", (one.tool.id,), message, "warning")]


def _words(tool: Tool) -> list[str]:
    """What a tool says, without the numbers that tell copies apart."""
    return [word for word in tokens(document(tool, ("name", "description"))) if not word.isdigit()]


def _cosine(one: _Seen, other: _Seen) -> float:
    if not one.norm or not other.norm:
        return 0.0
    shared = one.weights.keys() & other.weights.keys()
    return sum(one.weights[word] * other.weights[word] for word in shared) / (one.norm * other.norm)


def _contained(one: _Seen, other: _Seen) -> float:
    if len(other.weights) < FEWEST_WORDS:
        return 0.0
    shared = one.weights.keys() & other.weights.keys()
    return sum(other.weights[word] ** 2 for word in shared) / other.norm**2
