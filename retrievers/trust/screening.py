"""Screens tools from outside before they are added. Fast enough for every change: the index finds the neighbours.

hidden      control characters, invisible text, orders to the model
stuffed     a list of keywords in place of a description
imitation   reads like a tool of another provider
flood       one of several new tools that read alike
hub         its vector is near to everything
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from retrievers.lint.finding import Finding, quoted
from retrievers.lint.hidden import hidden, stuffed
from retrievers.text import document, tokens
from retrievers.types import Tool

IMITATION = 0.85  # cosine of two tools' words from which on one imitates the other
CONTAINED = 0.95  # or the share of the other's words, by weight, that this one has: a copy with praise around it
MIN_WORDS = 6  # different words that the other must have for that: `get user` is in many descriptions
FLOOD_COSINE = 0.65  # the cosine among new tools, of which it takes several
FLOOD = 3
"""New tools of different providers that read alike. Those of one provider often do (a line about the server in every
description), and their part of a ranking is limited anyway."""
NEIGHBOURS = 20  # tools of the catalogue that a new tool is compared with
MAX_READ = 2_000  # tools that the weights of words are taken from

Near = Callable[[Sequence[str]], list[list[Tool]]]
"""The nearest tools of the catalogue for each text."""


@dataclass(frozen=True, slots=True)
class _WeightedTool:
    tool: Tool
    weights: dict[str, float]
    norm: float


class Screening:
    """Screens new tools for one catalogue."""

    def __init__(self, catalogue: Sequence[Tool]) -> None:
        """`catalogue`: its tools, or an even sample of them."""
        sample = catalogue[:: max(1, -(-len(catalogue) // MAX_READ))]
        self._count = len(sample)
        self._weigh = lru_cache(maxsize=MAX_READ)(self._compute_weights)
        self._frequency = Counter(word for tool in sample for word in set(_words(tool)))

    def screen(self, tools: Sequence[Tool], near: Near, is_new: Callable[[Tool], bool]) -> list[Finding]:
        """Findings about tools to be added. `is_new`: true for a tool whose provider is not vetted."""
        findings = list(hidden(tools))
        fresh = [tool for tool in tools if is_new(tool)]
        if not fresh:
            return findings
        findings.extend(stuffed(fresh))
        weighted = {tool.id: self._weigh(tool) for tool in fresh}
        tools_with: dict[str, list[str]] = {}
        for one in weighted.values():
            for word in one.weights:
                tools_with.setdefault(word, []).append(one.tool.id)
        for tool, neighbours in zip(fresh, near([f"{tool.name}\n{tool.description}" for tool in fresh]), strict=True):
            one = weighted[tool.id]
            others = {
                other.id: weighted.get(other.id) or self._weigh(other) for other in neighbours if other.id != tool.id
            }
            findings.extend(_imitation(one, others.values()))
            new = {id: other for id, other in others.items() if is_new(other.tool)}
            # New tools of the same change that have one of this one's weightiest words.
            heaviest = sorted(one.weights, key=lambda word: (-one.weights[word], word))[:8]
            new |= {id: weighted[id] for word in heaviest for id in tools_with[word][:200] if id != tool.id}
            findings.extend(_flood(one, new.values()))
        return findings

    def cosine(self, one: Tool, other: Tool) -> float:
        """Cosine of the words of two tools; rare words count more."""
        return _cosine(self._weigh(one), self._weigh(other))

    def _compute_weights(self, tool: Tool) -> _WeightedTool:
        counts = Counter(_words(tool))
        weights = {
            word: (1 + math.log(count)) * (math.log((1 + self._count) / (1 + self._frequency[word])) + 1)
            for word, count in counts.items()
        }
        return _WeightedTool(tool, weights, math.sqrt(sum(weight * weight for weight in weights.values())))


def _imitation(one: _WeightedTool, others: Iterable[_WeightedTool]) -> list[Finding]:
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


def _flood(one: _WeightedTool, new: Iterable[_WeightedTool]) -> list[Finding]:
    own = one.tool.provider.casefold()
    alike = [other for other in new if other.tool.provider.casefold() != own and _cosine(one, other) >= FLOOD_COSINE]
    if len(alike) < FLOOD - 1:
        return []
    message = f"{quoted(one.tool.name)} is one of {len(alike) + 1} newcomers that read alike: approve one of them"
    return [Finding("flood", (one.tool.id,), message, "warning")]


def _words(tool: Tool) -> list[str]:
    """Words of a tool, without the numbers that distinguish copies."""
    return [word for word in tokens(document(tool, ("name", "description"))) if not word.isdigit()]


def _cosine(one: _WeightedTool, other: _WeightedTool) -> float:
    if not one.norm or not other.norm:
        return 0.0
    shared = one.weights.keys() & other.weights.keys()
    return sum(one.weights[word] * other.weights[word] for word in shared) / (one.norm * other.norm)


def _contained(one: _WeightedTool, other: _WeightedTool) -> float:
    if len(other.weights) < MIN_WORDS:
        return 0.0
    shared = one.weights.keys() & other.weights.keys()
    return sum(other.weights[word] ** 2 for word in shared) / other.norm**2
