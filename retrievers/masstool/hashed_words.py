"""Logistic regression over hashed words and word pairs, for the detector.

An encoder tuned to find tools maps all texts that need the same tools to one point and forgets how they were phrased,
which often tells a request from a chat. Numbers all count as one word. The fit is deterministic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, pairwise
from zlib import crc32

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from scipy.special import expit
from torch import Tensor

BUCKETS = 1 << 16
STRENGTH = 30.0
"""Inverse of the ridge penalty, on the sum of losses."""
STEPS = 60
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


def word_logits(weights: Tensor, texts: Sequence[str]) -> Tensor:
    """Logits of needing a tool, by the weights of `fit_words`."""
    values = weights.cpu().double().numpy()
    return torch.from_numpy(bags(texts) @ values[:-1] + values[-1]).float()


def fit_words(texts: Sequence[str], needs: Tensor) -> Tensor:
    """(buckets + 1,) weights and, last, the bias. Both kinds of texts have the same total weight."""
    x, y = bags(texts), needs.cpu().numpy().astype(np.float64)
    shares = STRENGTH * len(y) / 2 * np.where(y > 0, 1 / y.sum(), 1 / (1 - y).sum())
    transposed = x.T.tocsr()

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        logits = x @ values[:-1] + values[-1]
        slope = shares * (expit(logits) - y)
        error = float(shares @ np.logaddexp(0, np.where(y > 0, -logits, logits)))
        ridge = values[:-1]
        return error + 0.5 * float(ridge @ ridge), np.append(transposed @ slope + ridge, slope.sum())

    fitted = minimize(loss, np.zeros(BUCKETS + 1), jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    return torch.from_numpy(fitted.x).float()
