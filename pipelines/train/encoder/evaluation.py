"""Evaluate an encoder on catalogues: alone, and fused with BM25 (without its bonus for names) as a hybrid does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.context import make_context
from pipelines.train.encoder.sets import EncoderSet
from retrievers.fusion import add_scores
from retrievers.kind import Block
from retrievers.lexical.bm25 import SCORE_UNIT, BM25Kind
from retrievers.rows import Rows
from retrievers.settings import BM25Settings
from retrievers.types import Ranking
from reward.metrics import measure_rankings

METRICS = ("recall@5", "ndcg@5", "comp@5")
CHOICE = "recall@5"
DEPTH = 100
SYSTEMS = ("dense", "hybrid")
"""The encoder alone, and with BM25."""
QueryScores = dict[str, dict[str, np.ndarray]]
"""System, metric -> one value per query."""


@dataclass(frozen=True, slots=True)
class EncodedRankings:
    """Rankings of one encoder for the judged queries of one set."""

    scores: QueryScores
    rankings: list[Ranking]


class SetJudge:
    """The judged queries of one set, tokenized once, with BM25's rankings."""

    def __init__(self, model: Any, data: EncoderSet, device: str, frozen: Sequence[str] = ()) -> None:
        """`frozen`: weights that are the same in all models to judge."""
        from retrievers.dense.tuning.tokens import read_texts

        self.name, self._gold = data.name, [{data.ids[row] for row in rows} for rows in data.judged.gold]
        documents, queries = data.training.documents, data.judged.queries
        self._documents = read_texts(model, documents, "document", device, frozen)
        self._queries = read_texts(model, queries, "query", device, frozen)
        self._rows = Rows(data.ids, np.ones(len(data.ids), dtype=bool))
        kind = BM25Kind(BM25Settings(names=0), make_context(device))
        bm25 = kind.open([Block(kind.rows(documents), self._rows.live)], self._rows, "", _no_other)
        self.lexical = bm25.search(list(queries), DEPTH)

    def __call__(self, model: Any) -> EncodedRankings:
        """Rank the whole catalogue for every query."""
        import torch

        model.eval()
        with torch.no_grad():
            documents, queries = self._documents.encode(model), self._queries.encode(model)
            similarities = (queries @ documents.T).cpu().numpy()
        rankings = [self._rows.best(row, DEPTH) for row in similarities]
        return EncodedRankings({name: self.measure(self.fused(rankings, name)) for name in SYSTEMS}, rankings)

    def fused(self, rankings: Sequence[Ranking], system: str) -> list[Ranking]:
        """The rankings of a system, given those of the encoder."""
        if system == "dense":
            return list(rankings)
        return [add_scores(pair, 5, (SCORE_UNIT, 1.0)) for pair in zip(self.lexical, rankings, strict=True)]

    def measure(self, rankings: Sequence[Ranking]) -> dict[str, np.ndarray]:
        """Metrics per query."""
        return measure_rankings(METRICS, [ranking.ids for ranking in rankings], self._gold)


def _no_other(name: str) -> Any:
    raise AssertionError(f"BM25 opens no other retriever, got {name}")


def mean_scores(scores: QueryScores) -> dict[str, dict[str, float]]:
    """The means over queries."""
    return {system: {name: float(values.mean()) for name, values in own.items()} for system, own in scores.items()}
