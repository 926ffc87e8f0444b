"""MassTool as it lives in an index folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from retrievers.base import Retriever
from retrievers.dense.embeddings import embed
from retrievers.dense.encoder import Encoder
from retrievers.dense.retriever import Dense
from retrievers.errors import BadInput
from retrievers.kind import Arrays, Block, Context
from retrievers.masstool.artifacts import Learned, Pair, blank, restore
from retrievers.masstool.pool import Pool
from retrievers.masstool.retriever import Confirmed, DetectingMassTool, MassTool
from retrievers.masstool.settings import MassToolSettings
from retrievers.rows import Rows
from retrievers.text import clean
from retrievers.training_set import TrainingSet


class MassToolKind:
    """Two vectors a tool on disk (what it is searched by, what it tells its queries), and what was learned."""

    def __init__(self, settings: MassToolSettings, context: Context, trained: Path | None = None) -> None:
        self._settings, self._context, self._trained = settings, context, trained
        tuned = trained / "encoder" if trained and (trained / "encoder").is_dir() else None
        encoder = Encoder(tuned or context.find_model(settings.model), settings.batch_size, context.device)
        self._encoder: Encoder = context.encoders.setdefault(encoder.fingerprint, encoder)
        self._learned: Learned | None = None
        self._confirmed: tuple[np.ndarray, list[Pair]] | None = None

    def train(self, sets: Sequence[TrainingSet], work: Path) -> Path:
        from retrievers.masstool.training.pipeline import train

        if len(sets) != 1:
            raise BadInput("MassTool learns from one data set")
        return train(sets[0], self._settings, self._encoder, work, self._context)

    def identity(self) -> dict[str, str]:
        return {"weights": self._encoder.fingerprint}

    def rows(self, documents: Sequence[str]) -> Arrays:
        texts = [clean(document) for document in documents]
        vectors = embed(self._encoder, texts, self._context)
        if self._trained is None:
            return self._with_graph({"vectors": vectors})
        placed, signals = self.learned(vectors.shape[1]).place(texts, vectors)
        return self._with_graph({"vectors": placed, "signals": signals})

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        labels = [label for label in blocks[0].arrays if label != "graph"]
        return self._with_graph(
            {label: np.concatenate([block.arrays[label][block.live] for block in blocks]) for label in labels}
        )

    def feedback_keys(self, queries: Sequence[str]) -> np.ndarray:
        """Keys of queries that will be confirmed."""
        return self._encoder.queries([clean(query) for query in queries])

    def load_feedback(self, keys: np.ndarray, pairs: list[Pair]) -> None:
        """Confirmed queries, for the retriever that is opened next."""
        self._confirmed = keys, pairs

    def learned(self, dimensions: int) -> Learned:
        """What training left, read once."""
        if self._learned is None:
            self._learned = (
                restore(self._trained, self._settings) if self._trained else blank(self._settings, dimensions)
            )
        return self._learned

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        dimensions = blocks[0].arrays["vectors"].shape[1]
        dense = Dense(self._encoder, blocks, rows, fingerprint, self._settings.ann_effort)
        learned = self.learned(dimensions)
        signals = _Stacked([block.arrays.get("signals", block.arrays["vectors"]) for block in blocks])
        live = {rows.ids[row]: int(row) for row in np.flatnonzero(rows.live)}
        keys, pairs = self._confirmed or (np.zeros((0, dimensions), np.float32), [])
        pool = Pool(learned.keys.numpy(), learned.pairs, live, signals, {query for query, _ in pairs})
        if learned.graph is not None:
            pool.with_graph(learned.graph, self._settings.ann_effort)
        # The authors' score is a sum of six cosines; a vote keeps its weight beside them.
        scale = 6.0 if learned.heads.settings.faithful else 1.0
        confirmed = Confirmed(Pool(keys, pairs, live, signals), blank(self._settings, dimensions).heads, scale)
        found = MassTool(self._encoder, dense, learned, pool, confirmed, rows)
        return found if learned.threshold is None else DetectingMassTool(found, learned.threshold)

    def _with_graph(self, arrays: Arrays) -> Arrays:
        if len(arrays["vectors"]) <= self._settings.ann_above:
            return arrays
        from retrievers.dense import ann

        return {**arrays, "graph": ann.build(arrays["vectors"], self._settings.ann_links)}


class _Stacked:
    """Several arrays, one under the other, of which only some rows are ever read."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays
        self._ends = np.cumsum([len(each) for each in arrays])

    def __getitem__(self, rows: list[int]) -> np.ndarray:
        wanted = np.asarray(rows, dtype=np.int64)
        found = np.empty((len(wanted), self._arrays[0].shape[1]), np.float32)
        places = np.searchsorted(self._ends, wanted, side="right")
        for place, array in enumerate(self._arrays):
            here = places == place
            found[here] = array[wanted[here] - (self._ends[place] - len(array))]
        return found
