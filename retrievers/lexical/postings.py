"""Postings of a segment: which rows hold which words, and how often, as arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from retrievers.kind import Arrays, Block


def count_words(texts: Sequence[Iterable[str]]) -> Arrays:
    """Postings of texts, given as their words; one row each."""
    vocabulary: dict[str, int] = {}
    terms, rows, counts = [], [], []
    for row, text in enumerate(texts):
        for word, count in Counter(text).items():
            terms.append(vocabulary.setdefault(word, len(vocabulary)))
            rows.append(row)
            counts.append(count)
    arrays = [np.array(column, dtype=np.int64) for column in (terms, rows, counts)]
    return _sorted(list(vocabulary), arrays[0], arrays[1], arrays[2], len(texts))


def merge_postings(blocks: Sequence[Block]) -> Arrays:
    """Postings of the live rows of several segments."""
    vocabulary: dict[str, int] = {}
    terms, rows, counts = [], [], []
    offset = 0
    for block in blocks:
        words = vocabulary_of(block.arrays)
        ids = np.array([vocabulary.setdefault(word, len(vocabulary)) for word in words], dtype=np.int64)
        live = block.live[block.arrays["rows"]]
        new_row = offset + np.cumsum(block.live) - 1
        terms.append(ids[terms_of(block.arrays)[live]])
        rows.append(new_row[block.arrays["rows"][live]])
        counts.append(block.arrays["counts"][live])
        offset += int(block.live.sum())
    return _sorted(list(vocabulary), np.concatenate(terms), np.concatenate(rows), np.concatenate(counts), offset)


def _sorted(vocabulary: list[str], terms: np.ndarray, rows: np.ndarray, counts: np.ndarray, size: int) -> Arrays:
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


def vocabulary_of(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """The words of a segment, in the order of `starts`."""
    text = arrays["vocabulary"].tobytes().decode()
    return text.split("\n") if text else []


def terms_of(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The number of the word of every posting."""
    return np.repeat(np.arange(len(arrays["starts"]) - 1), np.diff(arrays["starts"]))


def document_frequencies(terms: np.ndarray, live: np.ndarray, size: int) -> np.ndarray:
    """Per word, in how many live rows it is; `live`: per posting."""
    return np.bincount(terms[live], minlength=size)


def total_frequencies(segments: Sequence[tuple[Sequence[str], np.ndarray]]) -> list[np.ndarray]:
    """Per segment, in how many rows of all segments each of its words is."""
    if len(segments) == 1:
        return [segments[0][1]]
    total: Counter[str] = Counter()
    for words, frequencies in segments:
        total.update(dict(zip(words, frequencies.tolist(), strict=True)))
    return [np.array([total[word] for word in words], dtype=np.int64) for words, _ in segments]


def inverse_frequencies(frequencies: np.ndarray, num_rows: int) -> np.ndarray:
    """idf = ln((N + 1) / df); 0 where only dead rows have the word."""
    return np.where(frequencies > 0, np.log((num_rows + 1) / np.maximum(frequencies, 1)), 0.0)
