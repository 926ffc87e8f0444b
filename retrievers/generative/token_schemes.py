"""How a tool is spelled: the sequence of tokens that stands for it. One token a tool is the simplest case.

A spelling may need tokens that the model's vocabulary lacks; it says what each of them is to be initialised from. It
may learn something of the catalogue first (clusters, codebooks), which is then kept beside the model as plain arrays.
Adding one: a class like these, one line in SPELLINGS.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from retrievers.generative.cluster_tree import Clusters
from retrievers.text import words
from retrievers.types import Tool

Code = tuple[int, ...]
DIGITS = 5
"""Of a number, at the least."""


@dataclass(frozen=True, slots=True)
class Lexicon:
    """What a spelling knows of the world: the model's tokens and, for those that ask, vectors of texts."""

    ids: Callable[[str], list[int]]
    """The tokens of a text."""
    size: int
    """Tokens of the model; the first new one has this number."""
    embed: Callable[[Sequence[str]], np.ndarray]


@dataclass(frozen=True, slots=True)
class Spelled:
    """Tools as sequences of tokens."""

    codes: tuple[Code, ...]
    """One a tool, all different. Numbers from the lexicon's size up are new tokens."""
    new: tuple[str, ...] = ()
    """The text that each new token begins its life with."""


class Spelling(Protocol):
    """A way to spell tools."""

    def fit(self, documents: Sequence[str]) -> None:
        """Learns what there is to learn of the catalogue."""
        ...

    def spell(self, tools: Sequence[Tool], documents: Sequence[str], taken: Collection[Code]) -> Spelled:
        """A code for each tool, none of them taken."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """What was learned, for whoever spells later tools."""
        ...


def label(tool: Tool) -> str:
    """What a tool is called in words: its name, and whose it is where the name does not say so."""
    name = " ".join(words(tool.name)) or tool.name
    known = not tool.provider or tool.provider.casefold() in tool.name.casefold()
    return name if known else f"{name} for {tool.provider}"


class Atomic:
    """A new token for each tool, which begins as the mean of the tokens of the tool's name."""

    def __init__(self, lexicon: Lexicon, state: Mapping[str, np.ndarray]) -> None:
        self._lexicon = lexicon

    def fit(self, documents: Sequence[str]) -> None:
        pass

    def spell(self, tools: Sequence[Tool], documents: Sequence[str], taken: Collection[Code]) -> Spelled:
        codes = tuple((self._lexicon.size + place,) for place in range(len(tools)))
        return Spelled(codes, tuple(label(tool) for tool in tools))

    def state(self) -> dict[str, np.ndarray]:
        return {}


class Semantic:
    """The tool's name and provider in the model's own tokens; names that stand twice are numbered."""

    def __init__(self, lexicon: Lexicon, state: Mapping[str, np.ndarray]) -> None:
        self._lexicon = lexicon

    def fit(self, documents: Sequence[str]) -> None:
        pass

    def spell(self, tools: Sequence[Tool], documents: Sequence[str], taken: Collection[Code]) -> Spelled:
        def names(tool: Tool) -> Iterator[Code]:
            yield tuple(self._lexicon.ids(label(tool)))
            for number in range(2, len(tools) + len(taken) + 3):
                yield tuple(self._lexicon.ids(f"{label(tool)} {number}"))

        return Spelled(_first_free(map(names, tools), taken))

    def state(self) -> dict[str, np.ndarray]:
        return {}


class Numeric:
    """The place in the catalogue, digit by digit; a tool that comes later gets a number by its id."""

    def __init__(self, lexicon: Lexicon, state: Mapping[str, np.ndarray]) -> None:
        self._lexicon = lexicon

    def fit(self, documents: Sequence[str]) -> None:
        pass

    def spell(self, tools: Sequence[Tool], documents: Sequence[str], taken: Collection[Code]) -> Spelled:
        width = max(DIGITS, len(str(2 * (len(tools) + len(taken)))))

        def numbers(place: int, tool: Tool) -> Iterator[Code]:
            start = _hashed(tool.id) % 10**width if taken else place
            for step in range(10**width):
                yield spell_digits(f"{(start + step) % 10**width:0{width}}", self._lexicon)

        return Spelled(_first_free((numbers(place, tool) for place, tool in enumerate(tools)), taken))

    def state(self) -> dict[str, np.ndarray]:
        return {}


class Hierarchical:
    """The path through clusters of clusters of alike tools, a digit a level, and a number in the last one."""

    def __init__(self, lexicon: Lexicon, state: Mapping[str, np.ndarray]) -> None:
        self._lexicon = lexicon
        self._clusters = Clusters(state) if state else None

    def fit(self, documents: Sequence[str]) -> None:
        self._clusters = Clusters.of(self._lexicon.embed(documents))

    def spell(self, tools: Sequence[Tool], documents: Sequence[str], taken: Collection[Code]) -> Spelled:
        if self._clusters is None:
            self.fit(documents)
        assert self._clusters is not None
        paths = self._clusters.paths(self._lexicon.embed(documents))

        def numbered(path: str) -> Iterator[Code]:
            for number in range(len(tools) + len(taken) + 1):
                yield spell_digits(f"{path}{number}", self._lexicon)

        return Spelled(_first_free(map(numbered, paths), taken))

    def state(self) -> dict[str, np.ndarray]:
        return self._clusters.state if self._clusters else {}


SPELLINGS: dict[str, Callable[[Lexicon, Mapping[str, np.ndarray]], Spelling]] = {
    "atomic": Atomic,
    "semantic": Semantic,
    "numeric": Numeric,
    "hierarchical": Hierarchical,
}


def spell_digits(digits: str, lexicon: Lexicon) -> Code:
    """Digits, each by itself: a tokenizer that would join them is not asked to."""
    return tuple(token for digit in digits for token in lexicon.ids(digit))


def _first_free(choices: Iterator[Iterator[Code]], taken: Collection[Code]) -> tuple[Code, ...]:
    """Of each tool's choices the first that nobody has. An empty one is nobody's."""
    used = {(), *taken}
    found = []
    for each in choices:
        code = next(code for code in each if code not in used)
        used.add(code)
        found.append(code)
    return tuple(found)


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8], "big")
