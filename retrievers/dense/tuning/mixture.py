"""Batches of a general encoder: one set at a time, larger sets more often, negatives of the same set only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from retrievers.dense.tuning.tokens import read_texts
from retrievers.settings import HARD_NEGATIVES, MixtureTraining
from retrievers.training_set import Examples

MAX_SCORES = 64_000_000  # similarities held in memory while negatives are mined


@dataclass(frozen=True, slots=True)
class MixtureSet:
    """One catalogue with its training queries."""

    name: str
    documents: tuple[str, ...]
    train: Examples


@dataclass(frozen=True, slots=True)
class Batch:
    """Training queries of one set, and the documents in their softmax."""

    set_index: int
    queries: list[int]
    documents: list[int]
    targets: np.ndarray
    """(queries, documents): each gold tool has an equal share."""


class Mixture:
    """The sets, tokenized, with hard negatives that the untuned model finds."""

    def __init__(
        self, model: Any, sets: Sequence[MixtureSet], settings: MixtureTraining, seed: int, device: str
    ) -> None:
        self._sets, self._settings, self._seed = sets, settings, seed
        self._candidates = [sorted({row for gold in data.train.gold for row in gold}) for data in sets]
        self._columns = [{row: i for i, row in enumerate(rows)} for rows in self._candidates]
        frozen = settings.freeze
        self._queries = [read_texts(model, data.train.queries, "query", device, frozen) for data in sets]
        self._documents = [
            read_texts(model, [data.documents[row] for row in rows], "document", device, frozen)
            for data, rows in zip(sets, self._candidates, strict=True)
        ]
        self._negatives = [self._mine(model, index) for index in range(len(sets))]
        self.shares = set_shares([len(data.train) for data in sets], settings.mixture)

    def _mine(self, model: Any, index: int) -> np.ndarray:
        """(queries, negatives): the nearest wrong candidates of every training query, -1 where there are no more."""
        gold = [[self._columns[index][row] for row in rows] for rows in self._sets[index].train.gold]
        count = min(HARD_NEGATIVES + max(map(len, gold)), len(self._candidates[index]))
        model.eval()
        with torch.no_grad():
            documents = self._documents[index].encode(model)
            queries = self._queries[index].encode(model)
            step = max(1, MAX_SCORES // len(documents))
            parts = [(queries[i : i + step] @ documents.T).topk(count).indices.cpu() for i in range(0, len(gold), step)]
        near = torch.cat(parts).tolist()
        mined = np.full((len(gold), HARD_NEGATIVES), -1)
        for row, (columns, needed) in enumerate(zip(near, gold, strict=True)):
            wrong = [column for column in columns if column not in needed][:HARD_NEGATIVES]
            mined[row, : len(wrong)] = wrong
        return mined

    def draw(self, step: int) -> Batch:
        """The batch of a step. It depends on seed and step alone, so that a resumed run draws the same."""
        rng = np.random.default_rng([self._seed, step])
        index = int(rng.choice(len(self._sets), p=self.shares))
        data, columns = self._sets[index], self._columns[index]
        queries = rng.permutation(len(data.train))[: self._settings.batch_size].tolist()
        gold = [[columns[row] for row in data.train.gold[query]] for query in queries]
        chosen = {column for needed in gold for column in needed}
        picks = rng.permuted(np.tile(np.arange(HARD_NEGATIVES), (len(queries), 1)), axis=1)
        for query, ranks in zip(queries, picks[:, : self._settings.negatives], strict=True):
            chosen.update(int(column) for column in self._negatives[index][query, ranks] if column >= 0)
        documents = sorted(chosen)
        position = {column: i for i, column in enumerate(documents)}
        targets = np.zeros((len(queries), len(documents)), np.float32)
        for i, needed in enumerate(gold):
            targets[i, [position[column] for column in needed]] = 1.0 / len(needed)
        return Batch(index, queries, documents, targets)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        """Cross entropy between softmax(query . document / temperature) and the gold tools."""
        queries = self._queries[batch.set_index].encode(model, batch.queries)
        documents = self._documents[batch.set_index].encode(model, batch.documents)
        logits = queries @ documents.T / self._settings.temperature
        targets = torch.from_numpy(batch.targets).to(logits.device)
        return -(targets * functional.log_softmax(logits, dim=-1)).sum(dim=-1).mean()


def set_shares(sizes: Sequence[int], exponent: float) -> np.ndarray:
    """Share of the steps per set: its size to the power of `exponent`."""
    powers = np.array(sizes, dtype=np.float64) ** exponent
    shares: np.ndarray = powers / powers.sum()
    return shares
