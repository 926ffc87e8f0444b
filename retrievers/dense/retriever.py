"""Dense search: unit vectors of a sentence-transformers model, exact up to a size, an HNSW graph above it."""

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

MAX_SCORES = 16_000_000  # scores held in memory at a time (64 MB)


class DenseKind:
    """Vectors on disk, and a graph over them above `ann_above`."""

    def __init__(self, settings: DenseSettings, context: Context, trained: Path | None = None) -> None:
        self._settings, self._context = settings, context
        encoder = Encoder(
            trained or context.find_model(settings.model), settings.batch_size, context.device, context.cache
        )
        # Several retrievers and several openings of one index share one loaded model.
        self.encoder: Encoder = context.encoders.setdefault(encoder.fingerprint, encoder)

    def train(self, sets: Sequence[TrainingSet], work: Path) -> Path:
        training = self._settings.train
        if training is None:
            raise BadInput("this dense retriever has no `train` settings")
        try:
            from retrievers.dense.tuning.train import tune
        except ModuleNotFoundError as error:
            raise ModelMissing(f"training needs {error.name}; run `pip install toolrewrite[train]`") from error
        return tune(self.encoder.folder, sets, training, training.seed, work, self._context)

    def identity(self) -> dict[str, str]:
        return {"weights": self.encoder.fingerprint}

    def rows(self, documents: Sequence[str]) -> Arrays:
        vectors = embed(
            self.encoder, [clean(document) for document in documents], self._context, model=self._settings.model
        )
        return with_graph({"vectors": vectors}, self._settings.ann_above)

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        vectors = np.concatenate([block.arrays["vectors"][block.live] for block in blocks])
        return with_graph({"vectors": vectors}, self._settings.ann_above)

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        return Dense(self.encoder, blocks, rows, fingerprint)


def with_graph(arrays: Arrays, ann_above: int) -> Arrays:
    """The arrays, with an HNSW graph over `vectors` where there are more than `ann_above`."""
    if len(arrays["vectors"]) <= ann_above:
        return arrays
    from retrievers.dense import ann

    return {**arrays, "graph": ann.build(arrays["vectors"])}


def search_texts(
    encoder: Encoder, queries: Sequence[str], search: Callable[[np.ndarray], list[Ranking]]
) -> list[Ranking]:
    """Rankings by the queries' vectors; an empty query has an empty ranking."""
    texts = [clean(query) for query in queries]
    filled = [index for index, text in enumerate(texts) if text]
    rankings = [Ranking()] * len(texts)
    if filled:
        vectors = encoder.queries([texts[index] for index in filled])
        for index, ranking in zip(filled, search(vectors), strict=True):
            rankings[index] = ranking
    return rankings


class Dense:
    """Inner products of the query's vector with every live tool's."""

    score_unit = 1.0

    def __init__(
        self, encoder: Encoder, blocks: Sequence[Block], rows: Rows, fingerprint: str, effort: int | None = None
    ) -> None:
        """`effort`: candidates per search of a graph; None: the default."""
        self._encoder, self._rows, self.fingerprint = encoder, rows, fingerprint
        self._blocks = [block for block in blocks if len(block.live)]
        self._graphs: list[object | None] = [None] * len(self._blocks)
        for index, block in enumerate(self._blocks):
            if "graph" in block.arrays:
                from retrievers.dense.ann import SEARCH_EFFORT, HnswGraph

                self._graphs[index] = HnswGraph(block.arrays["graph"], block.live, effort or SEARCH_EFFORT)

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        if not self._rows.live.any():
            return [Ranking()] * len(queries)
        return search_texts(self._encoder, queries, lambda vectors: self.search_vectors(vectors, k))

    def search_vectors(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        """Search without the encoder."""
        rankings: list[Ranking] = []
        step = max(1, MAX_SCORES // len(self._rows.ids))
        for start in range(0, len(vectors), step):
            batch = vectors[start : start + step]
            if any(graph is not None for graph in self._graphs):
                rankings.extend(self._search_graphs(batch, k))
                continue
            scores = [batch @ block.arrays["vectors"].T for block in self._blocks]  # each (queries, rows of the block)
            together = scores[0] if len(scores) == 1 else np.concatenate(scores, axis=1)
            rankings.extend(self._rows.best(row, k) for row in together)
        return rankings

    def live_vectors(self) -> np.ndarray:
        """(tools, dimensions) of all live tools."""
        return np.concatenate([block.arrays["vectors"][block.live] for block in self._blocks])

    def embed(self, documents: Sequence[str]) -> np.ndarray:
        """The vectors that documents would have in this index."""
        return self._encoder.documents([clean(document) for document in documents])

    def _search_graphs(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        """Each segment's best by graph or exactly, then the best of those."""
        parts, offset = [], 0
        for block, graph in zip(self._blocks, self._graphs, strict=True):
            if graph is not None:
                rows, scores = graph.search(vectors, k)  # type: ignore[attr-defined]
            else:
                scores = vectors @ block.arrays["vectors"].T
                rows = np.broadcast_to(np.arange(len(block.live)), scores.shape)
            parts.append((np.where(rows < 0, -1, rows + offset), scores))
            offset += len(block.live)
        all_rows, all_scores = (np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
        rankings = []
        for rows, scores in zip(all_rows, all_scores, strict=True):
            live = (rows >= 0) & self._rows.live[rows]
            rankings.append(self._rows.ranking(rows[live], scores[live], k))
        return rankings
