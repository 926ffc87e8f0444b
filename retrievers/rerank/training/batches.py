"""Training lists: a query, some tools it needs, and wrong ones that the retriever put near the top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retrievers.dense.tuning.mixture import set_shares
from retrievers.rerank.settings import RerankTraining


@dataclass(frozen=True, slots=True)
class RerankTrainingSet:
    """One catalogue with its training queries and their lists."""

    name: str
    documents: tuple[str, ...]
    queries: tuple[str, ...]
    gold: tuple[tuple[int, ...], ...]
    """Rows of the documents that each query needs."""
    lists: np.ndarray
    """(queries, ranks): rows of the documents that the retriever returned, -1 behind the last."""


@dataclass(frozen=True, slots=True)
class TrainingList:
    """A query with candidates to tell apart."""

    query: str
    documents: list[str]
    needed: list[bool]


class TrainingLists:
    """Draws the lists of a step. They depend on seed and step alone, so that a resumed run draws the same."""

    def __init__(self, sets: Sequence[RerankTrainingSet], settings: RerankTraining, seed: int) -> None:
        self._sets, self._settings, self._seed = sets, settings, seed
        self.shares = set_shares([len(data.queries) for data in sets], settings.mixture)

    def draw(self, step: int) -> list[TrainingList]:
        """The lists of a step, of several sets."""
        rng = np.random.default_rng([self._seed, step])
        sets = rng.choice(len(self._sets), size=self._settings.queries, p=self.shares)
        return [self._draw(self._sets[index], rng) for index in sets.tolist()]

    def _draw(self, data: RerankTrainingSet, rng: np.random.Generator) -> TrainingList:
        size = min(self._settings.candidates, len(data.documents))
        query = int(rng.integers(len(data.queries)))
        gold = rng.permutation(data.gold[query])[: max(1, size // 2)].tolist()
        needed = set(data.gold[query])
        near = [row for row in data.lists[query, : self._settings.depth].tolist() if row >= 0 and row not in needed]
        wrong = rng.permutation(near)[: size - len(gold)].astype(int).tolist() if near else []
        chosen = set(wrong) | needed
        for row in rng.integers(len(data.documents), size=4 * size).tolist():  # short lists get random ones
            if len(gold) + len(wrong) < size and row not in chosen:
                wrong.append(row)
                chosen.add(row)
        rows = [*gold, *wrong]
        return TrainingList(data.queries[query], [data.documents[row] for row in rows], [row in needed for row in rows])
