"""A bonus for tools whose names are in the query, in the unit of BM25's scores.

People who ask for a tool by its name ("when a Slack message comes in, add a row in Google Sheets") expect that tool.
BM25 counts a word of a name like any other, and one of three words of a name as a third of it. Here a tool gets

    weight x idf of the words of its name that the query has x (their share of the idf of the whole name) ^ 3

so that a name counts where the query has most of it, and more the rarer its words are. The idf is that of BM25, over
whole documents: over names alone "message" or "next" is rare, and a tool that calls itself so would gain by it.
docs/notes/2026-11-18-general-encoder.md has the figures that chose weight and exponent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from retrievers.kind import Arrays, Block
from retrievers.lexical.postings import count_words, document_frequencies, merge_postings, terms_of, vocabulary_of
from retrievers.text import name_tokens

LABELS = {"vocabulary": "name-vocabulary", "starts": "name-starts", "rows": "name-rows"}
"""Arrays of postings that are kept -> their labels; each word counts once in a name."""


def name_rows(names: Sequence[str]) -> Arrays:
    """Arrays for a segment: the words of each tool's name, every word once."""
    return _labelled(count_words([list(dict.fromkeys(name_tokens(name))) for name in names]))


def merge_names(blocks: Sequence[Block]) -> Arrays:
    """Arrays of one segment holding the live rows of several; none where a segment has no names."""
    return _labelled(merge_postings([_unlabelled(block) for block in blocks])) if have_names(blocks) else {}


def have_names(blocks: Sequence[Block]) -> bool:
    """False for an index of an earlier version, and where names are not indexed."""
    return all(label in block.arrays for block in blocks for label in LABELS.values())


def _labelled(arrays: Arrays) -> Arrays:
    return {label: arrays[part] for part, label in LABELS.items()}


def _unlabelled(block: Block) -> Block:
    arrays = {part: np.asarray(block.arrays[label]) for part, label in LABELS.items()}
    return Block(arrays | {"counts": np.ones(len(arrays["rows"]), np.int32)}, block.live)


class _SegmentNames:
    """The names of one segment."""

    def __init__(self, names: Block, idf_of: Callable[[str], float], weight: float) -> None:
        self.rows, self.starts = names.arrays["rows"].astype(np.int64), names.arrays["starts"]
        self.vocabulary = {word: number for number, word in enumerate(vocabulary_of(names.arrays))}
        terms, self.num_rows = terms_of(names.arrays), len(names.live)
        is_live = document_frequencies(terms, names.live[self.rows], len(self.vocabulary)) > 0
        self.idf = np.where(is_live, [idf_of(word) for word in self.vocabulary], 0.0)
        whole = np.bincount(self.rows, weights=self.idf[terms], minlength=self.num_rows)
        self._factor = np.divide(weight, whole**3, out=np.zeros(self.num_rows), where=whole > 0)

    def bonus(self, words: Sequence[str]) -> np.ndarray:
        """The bonus of every row: shared x (shared / whole) ^ 3, by products over all rows, which is fastest."""
        shared = np.zeros(self.num_rows)  # idf of the words of the name that the query has
        for term in [self.vocabulary[word] for word in words if word in self.vocabulary]:
            shared[self.rows[self.starts[term] : self.starts[term + 1]]] += self.idf[term]
        shared *= shared
        shared *= shared
        shared *= self._factor
        return shared


class NameBonus:
    """The bonus of every row of an index."""

    def __init__(self, blocks: Sequence[Block], idf: Sequence[Callable[[str], float]], weight: float) -> None:
        """`idf`: per segment, the idf of a word in the documents of all segments."""
        self._weight = weight
        pairs = zip(blocks, idf, strict=True)
        self._segments = [_SegmentNames(_unlabelled(block), idf_of, weight) for block, idf_of in pairs]

    def scores(self, words: Sequence[str]) -> np.ndarray:
        """(rows,): the bonus of each row for the words of a query."""
        once = list(dict.fromkeys(words))
        return np.concatenate([segment.bonus(once) for segment in self._segments])

    def max_score(self, words: Sequence[str]) -> float:
        """The bonus that no tool can exceed: that of a name made of all known words of the query."""
        return self._weight * sum(map(self._idf, dict.fromkeys(words)))

    def _idf(self, word: str) -> float:
        known = [(segment, segment.vocabulary[word]) for segment in self._segments if word in segment.vocabulary]
        return max((float(segment.idf[term]) for segment, term in known), default=0.0)
