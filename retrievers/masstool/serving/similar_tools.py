"""Transfer of learned shifts to tools that were not trained, from trained tools with similar texts.

A trained tool j counts exp((cos(t, j) - 1) / WIDTH): 1 for the same text, .37 at a cosine of .9, .05 at .7. The weights
sum to 1 at most, so that a tool unlike all trained ones keeps the vector of its text.
"""

from __future__ import annotations

import numpy as np

WIDTH = 0.1
MAX_SOURCES = 8
BATCH_SIZE = 4096


def similar_shifts(texts: np.ndarray, trained_texts: np.ndarray, shifts: np.ndarray, strength: float) -> np.ndarray:
    """(tools, dimensions) shifts for tools of these texts, from the shifts of trained tools."""
    moved, count = np.zeros_like(texts), min(MAX_SOURCES, len(trained_texts))
    if not count or not strength:
        return moved
    for start in range(0, len(texts), BATCH_SIZE):
        part = slice(start, start + BATCH_SIZE)
        cosines = texts[part] @ trained_texts.T
        nearest = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
        weights = np.exp((np.minimum(np.take_along_axis(cosines, nearest, axis=1), 1) - 1) / np.float32(WIDTH))
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1)
        moved[part] = strength * np.matmul(weights[:, None], shifts[nearest])[:, 0]
    return moved
