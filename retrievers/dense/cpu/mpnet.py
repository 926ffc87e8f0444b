"""MPNet as a BERT whose attention also knows how far apart two tokens are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

RELATIVE = "encoder.relative_attention_bias.weight"
"""(buckets, heads): what a head adds to the score of two tokens, by the bucket of their distance."""
BIAS = "bias"
"""Input of the graph: (heads, tokens, tokens), added to the scores of attention."""
FARTHEST = 128  # distances from here on share a bucket
PARTS = {"attn.q.": "self.query.", "attn.k.": "self.key.", "attn.v.": "self.value.", "attn.o.": "output.dense."}


def bert_names(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """MPNet's weights under the names that BERT has for them."""
    renamed = {}
    for name, array in weights.items():
        own = name.replace("attention.LayerNorm", "attention.output.LayerNorm")
        for part, berts in PARTS.items():
            own = own.replace(f"attention.{part}", f"attention.{berts}")
        renamed[own] = array
    return renamed


def distance_bias(weights: Mapping[str, np.ndarray], tokens: int) -> np.ndarray:
    """(heads, tokens, tokens): what is added to the scores of a text of that length."""
    table = weights[RELATIVE].astype(np.float32)
    distances = np.arange(-tokens + 1, tokens)  # of the token that is read from the one that reads
    by_distance = table[_buckets(distances, len(table))]
    rows = np.arange(tokens)
    bias: np.ndarray = by_distance[rows[None, :] - rows[:, None] + tokens - 1].transpose(2, 0, 1)
    return np.ascontiguousarray(bias)


def _buckets(distances: np.ndarray, count: int) -> np.ndarray:
    """Half of the buckets for tokens that follow; near distances have one each, far ones share by their logarithm."""
    half, near = count // 2, count // 4
    sizes = np.abs(distances)
    growth = np.log(np.maximum(sizes, 1).astype(np.float32) / near) / np.log(np.float32(FARTHEST / near))
    far = np.minimum(near + (growth * (half - near)).astype(np.int64), half - 1)
    buckets: np.ndarray = np.where(sizes < near, sizes, far) + np.where(distances > 0, half, 0)
    return buckets
