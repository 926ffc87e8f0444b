"""Near copies of a query: the same words up to a few, or the same letters up to a few.

Asked about a query whose tools it knows, a retriever with a memory repeats them. So while rewriters are trained and
choices are made on dev, a query's copies must not answer for it. The thresholds are those at which ToolLens, ToolBench
and ToolE have about as many copies between test and train as within train: stricter ones would make training queries
harder than a user's, looser ones easier.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from retrievers.text import tokens

MIN_WORD_OVERLAP = 0.75
"""Share of common words from which on two queries are copies."""
MIN_TRIGRAM_OVERLAP = 0.75
"""Share of common runs of three letters, for typing errors."""
MAX_CHARACTERS = 2_000
"""Characters that are compared."""


class NearCopies:
    """Finds near copies among known queries, whose features are computed once."""

    def __init__(self, queries: Sequence[str]) -> None:
        self._queries = queries
        self._known: dict[int, tuple[frozenset[str], frozenset[str]]] = {}

    def is_copy(self, row: int, features: tuple[frozenset[str], frozenset[str]]) -> bool:
        """True if the query in this row is a near copy of the one with these features."""
        if row not in self._known:
            self._known[row] = copy_features(self._queries[row])
        words, trigrams = self._known[row]
        return (
            _overlap(words, features[0]) >= MIN_WORD_OVERLAP or _overlap(trigrams, features[1]) >= MIN_TRIGRAM_OVERLAP
        )


def copy_features(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Words and runs of three letters of a text."""
    text = text[:MAX_CHARACTERS]
    letters = "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))
    return frozenset(tokens(text)), frozenset(letters[i : i + 3] for i in range(max(1, len(letters) - 2)))


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    common = len(one & other)
    return common / (len(one) + len(other) - common) if common else 0.0
