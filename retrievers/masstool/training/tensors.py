"""Training data of the heads as tensors: vectors, gold rows, labels; nearest neighbours and dev metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from retrievers.dense.embeddings import embed
from retrievers.dense.encoder import Encoder
from retrievers.kind import Context, Measure
from retrievers.masstool.vectors import Neighbours
from retrievers.training_set import Labels, TrainingSet

METRICS = ("recall@3", "recall@5", "ndcg@5", "comp@3")
MAX_RANK = 10
MAX_SCORES = 16_000_000
"""Scores computed at once in a search for neighbours."""


@dataclass(frozen=True, slots=True)
class LabelledVectors:
    """Vectors of labelled queries."""

    vectors: Tensor
    needs: Tensor
    """True where a query needs a tool."""
    texts: Sequence[str] = ()

    def has_both_kinds(self) -> bool:
        """True where some queries need a tool and others do not."""
        return bool(self.needs.any()) and not bool(self.needs.all())

    def to(self, device: str) -> LabelledVectors:
        """Copy to a device."""
        return LabelledVectors(self.vectors.to(device), self.needs.to(device), self.texts)


def no_labels(dimensions: int) -> LabelledVectors:
    """Empty labels."""
    return LabelledVectors(torch.zeros(0, dimensions), torch.zeros(0, dtype=torch.bool))


@dataclass(frozen=True, slots=True)
class TrainingTensors:
    """One catalogue with its training and dev queries, all embedded."""

    tools: Tensor
    train: Tensor
    gold: Sequence[Sequence[int]]
    dev: Tensor
    dev_gold: Sequence[Sequence[int]]
    labels: LabelledVectors
    dev_labels: LabelledVectors

    def to(self, device: str) -> TrainingTensors:
        """Copy to a device."""
        moved = {name: getattr(self, name).to(device) for name in ("tools", "train", "dev", "labels", "dev_labels")}
        return replace(self, **moved)

    def trained_tools(self) -> list[int]:
        """Rows of the tools that some training query needs."""
        return sorted({row for rows in self.gold for row in rows})


def embed_training_set(data: TrainingSet, encoder: Encoder, context: Context) -> TrainingTensors:
    """Encode all texts of a training set."""

    def vectors(texts: tuple[str, ...], method: str = "queries") -> Tensor:
        encoded = embed(encoder, list(texts), context, method)
        return torch.from_numpy(np.ascontiguousarray(encoded, dtype=np.float32))

    tools = vectors(data.documents, "documents")

    def labelled(labels: Labels) -> LabelledVectors:
        if not labels.queries:
            return no_labels(tools.shape[1])
        return LabelledVectors(vectors(labels.queries), torch.tensor(labels.needs), labels.queries)

    train, dev = vectors(data.train.queries), vectors(data.dev.queries)
    labels, dev_labels = labelled(data.labels), labelled(data.dev_labels)
    return TrainingTensors(tools, train, data.train.gold, dev, data.dev.gold, labels, dev_labels)


def nearest(queries: Tensor, keys: Tensor, count: int, exclude_self: bool = False) -> Neighbours:
    """Nearest keys of each query; `exclude_self`: queries and keys are the same rows."""
    count = min(count, len(keys) - exclude_self)
    step = max(1, MAX_SCORES // max(1, len(keys)))
    rows, cosines = [], []
    for start in range(0, len(queries), step):
        scores = queries[start : start + step] @ keys.T
        if exclude_self:
            own = torch.arange(len(scores), device=scores.device)
            scores[own, own + start] = -torch.inf
        best = scores.topk(max(0, count))
        rows.append(best.indices)
        cosines.append(best.values)
    if not rows or count <= 0:
        shape = (len(queries), 1)
        none = queries.new_zeros(shape)
        return Neighbours(queries.new_zeros(shape, dtype=torch.long), none, none > 0)
    every = torch.cat(rows)
    return Neighbours(every, torch.cat(cosines), torch.ones_like(every, dtype=torch.bool))


@dataclass(frozen=True, slots=True)
class DevMetrics:
    """Dev metrics of score tables."""

    measure: Measure
    gold: Sequence[Sequence[int]]

    def __call__(self, scores: Tensor) -> dict[str, float]:
        """Means over queries; `mean` of all metrics is what dev selects by."""
        rankings = scores.topk(min(MAX_RANK, scores.shape[1])).indices.tolist()
        values = self.measure(METRICS, rankings, self.gold)
        means = {name: float(values[name].mean()) for name in METRICS}
        return {"mean": sum(means.values()) / len(means), **means}
