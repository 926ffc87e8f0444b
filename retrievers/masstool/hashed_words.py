"""The words of a query, beside its vector: what tells a request from a chat is often how it is put.

An encoder that was tuned to find tools forgets such things: whatever leads to the same tools comes to lie in one place.
A bag of words and word pairs, hashed into buckets, keeps them; numbers are all the same word. Its weights are a
logistic regression, fitted whole and without chance.
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
"""How far the weights may follow the labels: the inverse of the ridge, on the sum of losses."""
STEPS = 60
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff]|[^\\W\u3040-\u30ff\u3400-\u9fff]+")
_NUMBER = re.compile(r"\d+")


def buckets(text: str) -> list[int]:
    """The buckets of a text's words and word pairs, each once, in order."""
    words: list[str] = _WORD.findall(_NUMBER.sub("0", text.lower()))
    grams = {*words, *(f"{left} {right}" for left, right in pairwise(words))}
    return sorted({crc32(gram.encode("utf-8", "replace")) % BUCKETS for gram in grams})


def bags(texts: Sequence[str]) -> csr_matrix:
    """(texts, buckets), every row of length 1, or 0 where there is no word."""
    found = [buckets(text) for text in texts]
    ends = np.cumsum([0, *map(len, found)])
    columns = np.fromiter(chain.from_iterable(found), np.int32, ends[-1])
    values = np.concatenate([np.zeros(0), *(np.full(len(each), max(1, len(each)) ** -0.5) for each in found)])
    return csr_matrix((values, columns, ends), (len(found), BUCKETS))


def logits(weights: Tensor, texts: Sequence[str]) -> Tensor:
    """How much each text looks as if it needed a tool; `weights` are `fit`'s."""
    held = weights.cpu().double().numpy()
    return torch.from_numpy(bags(texts) @ held[:-1] + held[-1]).float()


def fit(texts: Sequence[str], needs: Tensor) -> Tensor:
    """(buckets + 1,): weights and, last, the bias. Both kinds of texts count the same, however many there are."""
    x, y = bags(texts), needs.cpu().numpy().astype(np.float64)
    shares = STRENGTH * len(y) / 2 * np.where(y > 0, 1 / y.sum(), 1 / (1 - y).sum())
    turned = x.T.tocsr()

    def loss(held: np.ndarray) -> tuple[float, np.ndarray]:
        found = x @ held[:-1] + held[-1]
        slope = shares * (expit(found) - y)
        wrong = float(shares @ np.logaddexp(0, np.where(y > 0, -found, found)))
        ridge = held[:-1]
        return wrong + 0.5 * float(ridge @ ridge), np.append(turned @ slope + ridge, slope.sum())

    found = minimize(loss, np.zeros(BUCKETS + 1), jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    return torch.from_numpy(found.x).float()
