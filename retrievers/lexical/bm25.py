"""BM25 over Unicode words, by bm25s (or, for comparison, by rank_bm25).

A segment on disk holds raw counts: vocabulary, postings (term -> rows, with frequencies), lengths. Scores depend on the
number of tools and their mean length, so they are computed on opening, in one vectorised pass (about 0.1 s for 50,000
tools), and passed to bm25s. That makes adding one tool cheap: bm25s itself can only index everything again.

The formula is BM25+ with delta 0, the one that bm25s and rank_bm25 have in common: idf = ln((N + 1) / df). Tools whose
names are in the query get a bonus (`names.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rank_bm25

from retrievers.base import Retriever
from retrievers.kind import Arrays, Block, Context
from retrievers.lexical.names import NameBonus, have_names, merge_names, name_rows
from retrievers.lexical.postings import (
    count_words,
    document_frequencies,
    inverse_frequencies,
    merge_postings,
    terms_of,
    total_frequencies,
    vocabulary_of,
)
from retrievers.rows import Rows
from retrievers.settings import BM25Settings
from retrievers.text import clean, tokens
from retrievers.types import Ranking

DIGITS = 9
SCORE_UNIT = 75.0
"""The score that counts as much as a cosine of 1, chosen on catalogues left out of training; 60 to 100 do as well."""


@contextmanager
def block_import(name: str) -> Iterator[None]:
    """Make `import name` fail inside the block, unless the program has imported it already."""
    modules: dict[str, Any] = sys.modules
    if name in modules:
        yield
        return
    modules[name] = None  # Python's way to block an import
    try:
        yield
    finally:
        del modules[name]


with block_import("jax"):  # bm25s would load it for nothing, and JAX takes three quarters of the GPU's memory
    import bm25s
    import bm25s.scoring

_term_score = bm25s.scoring._score_tfc_bm25plus


class BM25Kind:
    """Counts on disk, scores in memory."""

    def __init__(self, settings: BM25Settings, context: Context, trained: Path | None = None) -> None:
        self._settings = settings

    def identity(self) -> dict[str, str]:
        return {}

    def rows(self, documents: Sequence[str]) -> Arrays:
        return count_words([tokens(document) for document in documents])

    def rows_with_names(self, documents: Sequence[str], names: Sequence[str]) -> Arrays:
        return self.rows(documents) | (name_rows(names) if self._settings.names else {})

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        return merge_postings(blocks) | merge_names(blocks)

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        segments = _score_segments(blocks, self._settings)
        names = None
        if self._settings.names and have_names(blocks):
            names = NameBonus(blocks, [segment.idf_of for segment in segments], self._settings.names)
        if self._settings.engine == "rank_bm25":
            return RankBM25(segments, rows, fingerprint, self._settings, names)
        return BM25(segments, rows, fingerprint, names)


class _ScoredSegment:
    """One segment, ready to be searched."""

    def __init__(self, arrays: Arrays, live: np.ndarray) -> None:
        # Plain arrays over the mapped memory: slicing a memmap costs more than the sums it is sliced for.
        self.arrays, self.live = {name: np.asarray(array) for name, array in arrays.items()}, live
        self.vocabulary = {name: i for i, name in enumerate(vocabulary_of(arrays))}
        self.terms = terms_of(arrays)
        self.frequency = document_frequencies(self.terms, live[self.arrays["rows"]], len(self.vocabulary))
        self.engine = bm25s.BM25(method="bm25+", delta=0.0, dtype="float64", int_dtype="int64")
        self.engine.nonoccurrence_array = None  # with delta 0 a word that a tool lacks scores 0

    def set_scores(self, idf: np.ndarray, average: float, settings: BM25Settings) -> None:
        """Pass bm25s the score of every posting."""
        self._idf, self.max_scores = idf, idf * (settings.k1 + 1)
        rows = self.arrays["rows"]
        counts, lengths = self.arrays["counts"].astype(np.float64), self.arrays["lengths"][rows]
        self.engine.scores = {
            "data": idf[self.terms] * _term_score(counts, lengths, average, settings.k1, settings.b, 0.0),
            "indices": rows.astype(np.int64),
            "indptr": np.asarray(self.arrays["starts"]),
            "num_docs": len(self.live),
        }

    def idf_of(self, word: str) -> float:
        term = self.vocabulary.get(word)
        return 0.0 if term is None else float(self._idf[term])

    def scores(self, words: Sequence[str]) -> np.ndarray:
        known = [self.vocabulary[word] for word in words if word in self.vocabulary]
        if not known:
            return np.zeros(len(self.live))
        scores: np.ndarray = self.engine.get_scores_from_ids(known)
        return scores


def _score_segments(blocks: Sequence[Block], settings: BM25Settings) -> list[_ScoredSegment]:
    """Segments with scores that take the whole live catalogue into account."""
    segments = [_ScoredSegment(block.arrays, block.live) for block in blocks]
    live = sum(int(segment.live.sum()) for segment in segments)
    num_words = sum(int(segment.arrays["lengths"][segment.live].sum()) for segment in segments)
    average = max(num_words, 1) / max(live, 1)
    totals = total_frequencies([(list(segment.vocabulary), segment.frequency) for segment in segments])
    for segment, frequencies in zip(segments, totals, strict=True):
        segment.set_scores(inverse_frequencies(frequencies, live), average, settings)
    return segments


class BM25:
    """Searches every segment and ranks all rows together."""

    score_unit = SCORE_UNIT

    def __init__(
        self, segments: Sequence[_ScoredSegment], rows: Rows, fingerprint: str, names: NameBonus | None = None
    ) -> None:
        self._segments, self._rows, self.fingerprint, self._names = segments, rows, fingerprint, names

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        return [self._search_one(tokens(clean(query)), k) for query in queries]

    def max_scores(self, queries: Sequence[str]) -> list[float]:
        """The score of a tool that holds every known word of the query endlessly often, and in its name."""
        return [self._max_score_of(tokens(clean(query))) for query in queries]

    def _max_score_of(self, words: Sequence[str]) -> float:
        return sum(map(self._max_score, words)) + (self._names.max_score(words) if self._names else 0.0)

    def _max_score(self, word: str) -> float:
        for segment in self._segments:
            if (term := segment.vocabulary.get(word)) is not None:
                return float(segment.max_scores[term])
        return 0.0

    def _search_one(self, words: Sequence[str], k: int) -> Ranking:
        scores = np.concatenate([segment.scores(words) for segment in self._segments])
        if self._names:
            scores += self._names.scores(words)
        return self._rows.best(scores, k, 0.0, DIGITS)


class RankBM25:
    """The same search by rank_bm25, which scores the whole catalogue for every query."""

    score_unit = SCORE_UNIT

    def __init__(
        self,
        segments: Sequence[_ScoredSegment],
        rows: Rows,
        fingerprint: str,
        settings: BM25Settings,
        names: NameBonus | None = None,
    ) -> None:
        self._rows, self.fingerprint, self._names = rows, fingerprint, names
        # rank_bm25 takes texts, but only counts their words: the postings of the live rows will do.
        texts: list[list[str]] = []
        for segment in segments:
            vocabulary, words = list(segment.vocabulary), [list[str]() for _ in segment.live]
            for term, row, count in zip(segment.terms, segment.arrays["rows"], segment.arrays["counts"], strict=True):
                words[row].extend([vocabulary[term]] * int(count))
            texts.extend(text for text, is_live in zip(words, segment.live, strict=True) if is_live)
        self._live, self._k1 = np.flatnonzero(rows.live), settings.k1
        self._engine = rank_bm25.BM25Plus(texts, k1=settings.k1, b=settings.b, delta=0.0)

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        return [self._search_one(tokens(clean(query)), k) for query in queries]

    def max_scores(self, queries: Sequence[str]) -> list[float]:
        """As `BM25.max_scores`."""
        return [self._max_score(tokens(clean(query))) for query in queries]

    def _max_score(self, words: Sequence[str]) -> float:
        idf, most = self._engine.idf, self._k1 + 1
        bonus = self._names.max_score(words) if self._names else 0.0
        return bonus + float(most * sum(idf.get(word, 0.0) for word in words))

    def _search_one(self, words: Sequence[str], k: int) -> Ranking:
        scores = np.zeros(len(self._rows.ids))
        scores[self._live] = self._engine.get_scores(list(words))
        if self._names:
            scores += self._names.scores(words)
        return self._rows.best(scores, k, 0.0, DIGITS)
