"""Token schemes: how a tool is written as a sequence of tokens, its code. One token per tool is the simplest scheme.

A scheme may need tokens that the model's vocabulary lacks; it names the text that each of them is initialised from. It
may first learn from the catalogue (clusters); what it learned is kept with the model as plain arrays.
To add a scheme: a class like these, and one line in TOKEN_SCHEMES.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retrievers.generative.cluster_tree import ClusterTree
from retrievers.text import words
from retrievers.types import Tool

Code = tuple[int, ...]
MIN_DIGITS = 5


@dataclass(frozen=True, slots=True)
class TokenSource:
    """A scheme's access to the model's tokenizer and to an encoder."""

    tokenize: Callable[[str], list[int]]
    vocab_size: int
    """The id of the first new token."""
    embed: Callable[[Sequence[str]], np.ndarray]


@dataclass(frozen=True, slots=True)
class AssignedCodes:
    """Tools as sequences of tokens."""

    codes: tuple[Code, ...]
    """One per tool, all different. Ids from the vocabulary's size up are new tokens."""
    new_tokens: tuple[str, ...] = ()
    """The text that each new token is initialised from."""


class TokenScheme(ABC):
    """Base of all schemes: nothing to learn, nothing to keep."""

    def __init__(self, source: TokenSource, state: Mapping[str, np.ndarray]) -> None:
        self._source = source

    def fit(self, documents: Sequence[str]) -> None:
        """Learn from the catalogue; most schemes have nothing to learn."""
        return None

    @abstractmethod
    def assign(self, tools: Sequence[Tool], documents: Sequence[str], taken: Collection[Code]) -> AssignedCodes:
        """A code for each tool that is not in `taken`."""

    def state(self) -> dict[str, np.ndarray]:
        """Arrays that later additions need."""
        return {}

    def _digits(self, digits: str) -> Code:
        """Tokenize digit by digit, so that a tokenizer joins none of them."""
        return tuple(token for digit in digits for token in self._source.tokenize(digit))


def name_in_words(tool: Tool) -> str:
    """The words of a tool's name, with its provider unless the name contains it."""
    name = " ".join(words(tool.name)) or tool.name
    known = not tool.provider or tool.provider.casefold() in tool.name.casefold()
    return name if known else f"{name} for {tool.provider}"


class AtomicScheme(TokenScheme):
    """A new token per tool, initialised as the mean of the tokens of the tool's name."""

    def assign(self, tools: Sequence[Tool], documents: Sequence[str], taken: Collection[Code]) -> AssignedCodes:
        codes = tuple((self._source.vocab_size + index,) for index in range(len(tools)))
        return AssignedCodes(codes, tuple(map(name_in_words, tools)))


class SemanticScheme(TokenScheme):
    """The tool's name and provider in the model's own tokens; repeated names are numbered."""

    def assign(self, tools: Sequence[Tool], documents: Sequence[str], taken: Collection[Code]) -> AssignedCodes:
        def candidates(tool: Tool) -> Iterator[Code]:
            yield tuple(self._source.tokenize(name_in_words(tool)))
            for number in range(2, len(tools) + len(taken) + 3):
                yield tuple(self._source.tokenize(f"{name_in_words(tool)} {number}"))

        return AssignedCodes(_first_free(map(candidates, tools), taken))


class NumericScheme(TokenScheme):
    """The tool's position in the catalogue, digit by digit; a tool added later gets a number from its id's hash."""

    def assign(self, tools: Sequence[Tool], documents: Sequence[str], taken: Collection[Code]) -> AssignedCodes:
        width = max(MIN_DIGITS, len(str(2 * (len(tools) + len(taken)))))

        def candidates(index: int, tool: Tool) -> Iterator[Code]:
            digest = hashlib.sha256(tool.id.encode("utf-8", "replace")).digest()
            start = int.from_bytes(digest[:8], "big") % 10**width if taken else index
            for step in range(10**width):
                yield self._digits(f"{(start + step) % 10**width:0{width}}")

        return AssignedCodes(_first_free((candidates(*item) for item in enumerate(tools)), taken))


class HierarchicalScheme(TokenScheme):
    """The path through a tree of clusters, one digit per level, then a number within the leaf."""

    def __init__(self, source: TokenSource, state: Mapping[str, np.ndarray]) -> None:
        super().__init__(source, state)
        self._tree = ClusterTree(state) if state else None

    def fit(self, documents: Sequence[str]) -> None:
        self._tree = ClusterTree.fit(self._source.embed(documents))

    def assign(self, tools: Sequence[Tool], documents: Sequence[str], taken: Collection[Code]) -> AssignedCodes:
        if self._tree is None:
            self.fit(documents)
        assert self._tree is not None

        def candidates(path: str) -> Iterator[Code]:
            for number in range(len(tools) + len(taken) + 1):
                yield self._digits(f"{path}{number}")

        paths = self._tree.paths(self._source.embed(documents))
        return AssignedCodes(_first_free(map(candidates, paths), taken))

    def state(self) -> dict[str, np.ndarray]:
        return self._tree.state if self._tree else {}


TOKEN_SCHEMES: dict[str, type[TokenScheme]] = {
    "atomic": AtomicScheme,
    "semantic": SemanticScheme,
    "numeric": NumericScheme,
    "hierarchical": HierarchicalScheme,
}


def _first_free(candidates: Iterable[Iterator[Code]], taken: Collection[Code]) -> tuple[Code, ...]:
    """The first candidate of each tool that is free and not empty."""
    used = {(), *taken}
    codes = []
    for choices in candidates:
        code = next(code for code in choices if code not in used)
        used.add(code)
        codes.append(code)
    return tuple(codes)
