"""Lexical search: BM25 over Unicode words, by bm25s (or, for comparison, by rank_bm25).

Kept on disk are the raw counts, a segment at a time: vocabulary, postings (term -> rows, with frequencies), lengths.
Scores depend on how many tools there are and how long they are on average, so they are computed on opening, in one
vectorised pass (about 0.1 s for 50,000 tools), and handed to bm25s ready made. That is what makes adding one tool
cheap: bm25s itself can only index everything anew.

The formula is BM25+ with delta 0, the one that bm25s and rank_bm25 have in common: idf = ln((N + 1) / df).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import rank_bm25

from retrievers.base import Retriever
from retrievers.blocked_import import hidden
from retrievers.kind import Arrays, Block, Context
from retrievers.rows import Rows
from retrievers.settings import BM25Settings
from retrievers.text import clean, tokens
from retrievers.types import Ranking

with hidden("jax"):  # bm25s would wake it for no gain of ours, and JAX takes three quarters of the GPU's memory
    import bm25s
    import bm25s.scoring

DIGITS = 9
_term_score = bm25s.scoring._score_tfc_bm25plus


class BM25Kind:
    """Counts on disk, scores in memory."""

    def __init__(self, settings: BM25Settings, context: Context, trained: Path | None = None) -> None:
        self._settings = settings

    def identity(self) -> dict[str, str]:
        return {}

    def rows(self, documents: Sequence[str]) -> Arrays:
        vocabulary: dict[str, int] = {}
        terms, places, counts = [], [], []
        for row, document in enumerate(documents):
            for token, count in Counter(tokens(document)).items():
                terms.append(vocabulary.setdefault(token, len(vocabulary)))
                places.append(row)
                counts.append(count)
        return _postings(
            list(vocabulary),
            np.array(terms, dtype=np.int64),
            np.array(places, dtype=np.int64),
            np.array(counts, dtype=np.int64),
            len(documents),
        )

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        vocabulary: dict[str, int] = {}
        terms, places, counts = [], [], []
        offset = 0
        for block in blocks:
            names = _vocabulary(block.arrays)
            ids = np.array([vocabulary.setdefault(name, len(vocabulary)) for name in names], dtype=np.int64)
            kept = block.live[block.arrays["rows"]]
            new_row = offset + np.cumsum(block.live) - 1
            terms.append(ids[_terms(block.arrays)[kept]])
            places.append(new_row[block.arrays["rows"][kept]])
            counts.append(block.arrays["counts"][kept])
            offset += int(block.live.sum())
        return _postings(
            list(vocabulary), np.concatenate(terms), np.concatenate(places), np.concatenate(counts), offset
        )

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        shelves = _weigh(blocks, self._settings)
        if self._settings.engine == "rank_bm25":
            return RankBM25(shelves, rows, fingerprint, self._settings)
        return BM25(shelves, rows, fingerprint)


def _postings(vocabulary: list[str], terms: np.ndarray, rows: np.ndarray, counts: np.ndarray, size: int) -> Arrays:
    """Sorted postings; words that no row has any more are left out."""
    used, terms = np.unique(terms, return_inverse=True)
    order = np.lexsort((rows, terms))
    lengths = np.bincount(rows, weights=counts, minlength=size)
    return {
        "vocabulary": np.frombuffer("\n".join(vocabulary[i] for i in used).encode(), dtype=np.uint8),
        "starts": np.searchsorted(terms[order], np.arange(len(used) + 1)).astype(np.int64),
        "rows": rows[order].astype(np.int32),
        "counts": counts[order].astype(np.int32),
        "lengths": lengths.astype(np.int32),
    }


def _vocabulary(arrays: Arrays) -> list[str]:
    text = arrays["vocabulary"].tobytes().decode()
    return text.split("\n") if text else []


def _terms(arrays: Arrays) -> np.ndarray:
    """The term of every posting."""
    return np.repeat(np.arange(len(arrays["starts"]) - 1), np.diff(arrays["starts"]))


class _Shelf:
    """One segment, ready to be scored."""

    def __init__(self, arrays: Arrays, live: np.ndarray) -> None:
        # Plain arrays over the mapped memory: slicing a memmap costs more than the sums it is sliced for.
        self.arrays, self.live = {name: np.asarray(array) for name, array in arrays.items()}, live
        self.vocabulary = {name: i for i, name in enumerate(_vocabulary(arrays))}
        self.terms = _terms(arrays)
        # How many live tools have each term.
        self.spread = np.bincount(self.terms[live[arrays["rows"]]], minlength=len(self.vocabulary))
        self.engine = bm25s.BM25(method="bm25+", delta=0.0, dtype="float64", int_dtype="int64")
        self.engine.nonoccurrence_array = None  # with delta 0 a word that a tool lacks scores 0

    def weigh(self, idf: np.ndarray, average: float, settings: BM25Settings) -> None:
        """Gives bm25s the score of every posting."""
        rows = self.arrays["rows"]
        scores = idf[self.terms] * _term_score(
            self.arrays["counts"].astype(np.float64),
            self.arrays["lengths"][rows],
            average,
            settings.k1,
            settings.b,
            0.0,
        )
        self.engine.scores = {
            "data": scores,
            "indices": rows.astype(np.int64),
            "indptr": np.asarray(self.arrays["starts"]),
            "num_docs": len(self.live),
        }

    def scores(self, words: Sequence[str]) -> np.ndarray:
        known = [self.vocabulary[word] for word in words if word in self.vocabulary]
        if not known:
            return np.zeros(len(self.live))
        scores: np.ndarray = self.engine.get_scores_from_ids(known)
        return scores


def _weigh(blocks: Sequence[Block], settings: BM25Settings) -> list[_Shelf]:
    """Segments with scores that take the whole live catalogue into account."""
    shelves = [_Shelf(block.arrays, block.live) for block in blocks]
    live = sum(int(shelf.live.sum()) for shelf in shelves)
    words = sum(int(shelf.arrays["lengths"][shelf.live].sum()) for shelf in shelves)
    average = max(words, 1) / max(live, 1)
    together: Counter[str] = Counter()
    if len(shelves) > 1:
        for shelf in shelves:
            together.update(dict(zip(shelf.vocabulary, shelf.spread.tolist(), strict=True)))
    for shelf in shelves:
        spread = np.array([together[name] for name in shelf.vocabulary]) if together else shelf.spread
        # A term that only dead rows have has no idf, and no live posting to need one.
        idf = np.log((live + 1) / np.maximum(spread, 1))
        shelf.weigh(idf, average, settings)
    return shelves


class BM25:
    """Search by bm25s."""

    def __init__(self, shelves: Sequence[_Shelf], rows: Rows, fingerprint: str) -> None:
        self._shelves, self._rows, self.fingerprint = shelves, rows, fingerprint

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        return [self._one(tokens(clean(query)), k) for query in queries]

    def _one(self, words: Sequence[str], k: int) -> Ranking:
        scores = [shelf.scores(words) for shelf in self._shelves]
        return self._rows.best(scores[0] if len(scores) == 1 else np.concatenate(scores), k, 0.0, DIGITS)


class RankBM25:
    """The same search by rank_bm25, whose every query walks the whole catalogue."""

    def __init__(self, shelves: Sequence[_Shelf], rows: Rows, fingerprint: str, settings: BM25Settings) -> None:
        self._rows, self.fingerprint = rows, fingerprint
        # rank_bm25 wants texts: bags of words do, since it only counts. Dead rows are left out, so it never sees them.
        bags: list[list[str]] = []
        for shelf in shelves:
            names, bag = list(shelf.vocabulary), [list[str]() for _ in shelf.live]
            for term, row, count in zip(shelf.terms, shelf.arrays["rows"], shelf.arrays["counts"], strict=True):
                bag[row].extend([names[term]] * int(count))
            bags.extend(words for words, alive in zip(bag, shelf.live, strict=True) if alive)
        self._live = np.flatnonzero(rows.live)
        self._engine = rank_bm25.BM25Plus(bags, k1=settings.k1, b=settings.b, delta=0.0)

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        return [self._one(tokens(clean(query)), k) for query in queries]

    def _one(self, words: Sequence[str], k: int) -> Ranking:
        scores = np.zeros(len(self._rows.ids))
        scores[self._live] = self._engine.get_scores(list(words))
        return self._rows.best(scores, k, 0.0, DIGITS)
