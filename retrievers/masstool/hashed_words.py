"""Hashed words and word pairs of a text, and what they say about the need of a tool; training/word_fit.py fits it.

An encoder tuned to find tools maps all texts that need the same tools to one point and forgets how they were phrased,
which often tells a request from a chat. Numbers all count as one word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, pairwise
from zlib import crc32

import numpy as np
from scipy.sparse import csr_matrix

BUCKETS = 1 << 16
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff]|[^\\W\u3040-\u30ff\u3400-\u9fff]+")
_NUMBER = re.compile(r"\d+")


def buckets(text: str) -> list[int]:
    """Sorted distinct buckets of a text's words and word pairs."""
    words: list[str] = _WORD.findall(_NUMBER.sub("0", text.lower()))
    grams = {*words, *(f"{left} {right}" for left, right in pairwise(words))}
    return sorted({crc32(gram.encode("utf-8", "replace")) % BUCKETS for gram in grams})


def bags(texts: Sequence[str]) -> csr_matrix:
    """(texts, buckets) rows of unit length, or zero where a text has no word."""
    rows = [buckets(text) for text in texts]
    ends = np.cumsum([0, *map(len, rows)])
    columns = np.fromiter(chain.from_iterable(rows), np.int32, ends[-1])
    values = np.concatenate([np.zeros(0), *(np.full(len(row), max(1, len(row)) ** -0.5) for row in rows)])
    return csr_matrix((values, columns, ends), (len(rows), BUCKETS))


def word_logits(weights: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Logits of needing a tool, by the weights of `fit_words`."""
    values = weights.astype(np.float64)
    logits: np.ndarray = (bags(texts) @ values[:-1] + values[-1]).astype(np.float32)
    return logits
