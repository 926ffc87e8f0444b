"""Search by meaning: unit vectors of a sentence-transformers model, exact up to a size, an HNSW graph above it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from retrievers.base import Retriever
from retrievers.dense.embeddings import embed
from retrievers.dense.encoder import Encoder
from retrievers.errors import BadInput, ModelMissing
from retrievers.kind import Arrays, Block, Context
from retrievers.rows import Rows
from retrievers.settings import DenseSettings
from retrievers.text import clean
from retrievers.training_set import TrainingSet
from retrievers.types import Ranking

SCORES_AT_ONCE = 16_000_000
"""Scores held in memory at a time (64 MB)."""


class DenseKind:
    """Vectors on disk, and a graph over them where they are many."""

    def __init__(self, settings: DenseSettings, context: Context, trained: Path | None = None) -> None:
        self._settings, self._context = settings, context
        encoder = Encoder(trained or context.find_model(settings.model), settings.batch_size, context.device)
        # Several retrievers and several openings of one index share one loaded model.
        self._encoder: Encoder = context.encoders.setdefault(encoder.fingerprint, encoder)

    @property
    def encoder(self) -> Encoder:
        """The model."""
        return self._encoder

    def train(self, sets: Sequence[TrainingSet], work: Path) -> Path:
        training = self._settings.train
        if training is None:
            raise BadInput("this dense retriever has no `train` settings")
        try:
            from retrievers.dense.tuning.train import tune
        except ModuleNotFoundError as error:
            raise ModelMissing(f"training needs {error.name}; run `pip install toolrewrite[train]`") from error
        return tune(self._encoder.folder, sets, training, training.seed, work, self._context)

    def identity(self) -> dict[str, str]:
        return {"weights": self._encoder.fingerprint}

    def rows(self, documents: Sequence[str]) -> Arrays:
        return self._with_graph(embed(self._encoder, [clean(document) for document in documents], self._context))

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        return self._with_graph(np.concatenate([block.arrays["vectors"][block.live] for block in blocks]))

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        return Dense(self._encoder, blocks, rows, fingerprint, self._settings.ann_effort)

    def _with_graph(self, vectors: np.ndarray) -> Arrays:
        if len(vectors) <= self._settings.ann_above:
            return {"vectors": vectors}
        from retrievers.dense import ann

        return {"vectors": vectors, "graph": ann.build(vectors, self._settings.ann_links)}


class Dense:
    """Inner products of the query's vector with every live tool's."""

    def __init__(self, encoder: Encoder, blocks: Sequence[Block], rows: Rows, fingerprint: str, effort: int) -> None:
        self._encoder, self._rows, self.fingerprint = encoder, rows, fingerprint
        self._blocks = [block for block in blocks if len(block.live)]
        self._graphs: list[object | None] = [None] * len(self._blocks)
        for place, block in enumerate(self._blocks):
            if "graph" in block.arrays:
                from retrievers.dense.ann import Graph

                self._graphs[place] = Graph(block.arrays["graph"], block.live, effort)

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        texts = [clean(query) for query in queries]
        asked = [place for place, text in enumerate(texts) if text]
        answers = [Ranking()] * len(texts)
        if asked and self._rows.live.any():
            vectors = self._encoder.queries([texts[place] for place in asked])
            for place, ranking in zip(asked, self.search_vectors(vectors, k), strict=True):
                answers[place] = ranking
        return answers

    def search_vectors(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        """The part of a search that is not the encoder."""
        answers: list[Ranking] = []
        step = max(1, SCORES_AT_ONCE // len(self._rows.ids))
        for start in range(0, len(vectors), step):
            some = vectors[start : start + step]
            if any(graph is not None for graph in self._graphs):
                answers.extend(self._search_graphs(some, k))
                continue
            scores = [some @ block.arrays["vectors"].T for block in self._blocks]  # each (queries, rows of the block)
            together = scores[0] if len(scores) == 1 else np.concatenate(scores, axis=1)
            answers.extend(self._rows.best(row, k) for row in together)
        return answers

    def live_vectors(self) -> np.ndarray:
        """(tools, dimensions) of all tools that can be found."""
        return np.concatenate([block.arrays["vectors"][block.live] for block in self._blocks])

    def embed(self, documents: Sequence[str]) -> np.ndarray:
        """The vectors that documents would have here."""
        return self._encoder.documents([clean(document) for document in documents])

    def _search_graphs(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        """Each segment's best by graph or exactly, then the best of those."""
        found_rows, found_scores, offset = [], [], 0
        for block, graph in zip(self._blocks, self._graphs, strict=True):
            if graph is not None:
                rows, scores = graph.search(vectors, k)  # type: ignore[attr-defined]
            else:
                scores = vectors @ block.arrays["vectors"].T
                rows = np.broadcast_to(np.arange(len(block.live)), scores.shape)
            found_rows.append(np.where(rows < 0, -1, rows + offset))
            found_scores.append(scores)
            offset += len(block.live)
        all_rows, all_scores = np.concatenate(found_rows, axis=1), np.concatenate(found_scores, axis=1)
        answers = []
        for rows, scores in zip(all_rows, all_scores, strict=True):
            kept = (rows >= 0) & self._rows.live[rows]
            answers.append(self._rows.ranking(rows[kept], scores[kept], k))
        return answers
