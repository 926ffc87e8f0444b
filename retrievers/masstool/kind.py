"""MassTool as it lives in an index folder, and the retriever that is opened from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from retrievers.base import Retriever
from retrievers.dense import Dense
from retrievers.embeddings import embed
from retrievers.encoder import Encoder
from retrievers.errors import BadInput
from retrievers.kinds import Arrays, Block, Context
from retrievers.masstool.learned import Learned, Pair, blank, restore
from retrievers.masstool.losses import probabilities
from retrievers.masstool.pool import Pool
from retrievers.masstool.settings import MassToolSettings
from retrievers.rows import Rows
from retrievers.text import clean
from retrievers.tuning.examples import TrainingSet
from retrievers.types import Ranking

AT_ONCE = 1024
"""Queries that are looked up together."""


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
        from retrievers.masstool.learning import train

        if len(sets) != 1:
            raise BadInput("MassTool learns from one data set")
        return train(sets[0], self._settings, self._encoder, work, self._context)

    def identity(self) -> dict[str, str]:
        return {"weights": self._encoder.fingerprint}

    def rows(self, documents: Sequence[str]) -> Arrays:
        texts = [clean(document) for document in documents]
        vectors = embed(self._encoder, texts, self._context.cache, self._context.show_progress)
        if self._trained is None:
            return self._with_graph({"vectors": vectors})
        placed, signals = self.learned(vectors.shape[1]).place(texts, vectors)
        return self._with_graph({"vectors": placed, "signals": signals})

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        labels = [label for label in blocks[0].arrays if label != "graph"]
        return self._with_graph(
            {label: np.concatenate([block.arrays[label][block.live] for block in blocks]) for label in labels}
        )

    def remember(self, queries: Sequence[str]) -> np.ndarray:
        """Keys of queries that will be confirmed."""
        return self._encoder.queries([clean(query) for query in queries])

    def recall(self, keys: np.ndarray, pairs: list[Pair]) -> None:
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
        keys, pairs = learned.keys.numpy(), learned.pairs
        if self._confirmed is not None:
            keys, pairs = np.concatenate([keys, self._confirmed[0]]), [*pairs, *self._confirmed[1]]
        signals = _Stacked([block.arrays.get("signals", block.arrays["vectors"]) for block in blocks])
        live = {rows.ids[row]: int(row) for row in np.flatnonzero(rows.live)}
        pool = Pool(keys, pairs, live, signals, len(learned.keys))  # type: ignore[arg-type]
        if learned.graph is not None:
            pool.with_graph(learned.graph, self._settings.ann_effort)
        found = MassTool(self._encoder, dense, learned, pool, rows)
        return found if learned.threshold is None else DetectingMassTool(found, learned.threshold)

    def _with_graph(self, arrays: Arrays) -> Arrays:
        if len(arrays["vectors"]) <= self._settings.ann_above:
            return arrays
        from retrievers import ann

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


class MassTool:
    """Folds a query and its neighbours into one vector, and searches the tools with it."""

    def __init__(self, encoder: Encoder, dense: Dense, learned: Learned, pool: Pool, rows: Rows) -> None:
        self._encoder, self._dense, self._learned, self._pool = encoder, dense, learned, pool
        self._anything, self.fingerprint = bool(rows.live.any()), dense.fingerprint

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        texts = [clean(query) for query in queries]
        asked = [place for place, text in enumerate(texts) if text]
        answers = [Ranking()] * len(texts)
        if asked and self._anything:
            vectors = self.vectors(self._encoder.queries([texts[place] for place in asked]))
            for place, ranking in zip(asked, self._dense.search_vectors(vectors, k), strict=True):
                answers[place] = ranking
        return answers

    @torch.no_grad()
    def vectors(self, encoded: np.ndarray) -> np.ndarray:
        """u(q) of encoded queries: the one vector that is matched with every tool's."""
        parts = []
        for start in range(0, len(encoded), AT_ONCE):
            some = np.ascontiguousarray(encoded[start : start + AT_ONCE], dtype=np.float32)
            near = self._pool.near(some, self._learned.heads.settings.neighbours)
            found = self._learned.heads(
                torch.from_numpy(some), near, self._pool.keys, self._pool.seen, self._pool.tools, None
            )
            parts.append(found.vectors.numpy())
        return np.concatenate(parts)

    @torch.no_grad()
    def needs(self, queries: Sequence[str]) -> list[float]:
        """How likely each query needs a tool; an empty one does not."""
        texts = [clean(query) for query in queries]
        asked = [place for place, text in enumerate(texts) if text]
        found = [0.0] * len(texts)
        if asked:
            heads = self._learned.heads
            encoded = torch.from_numpy(self._encoder.queries([texts[place] for place in asked]))
            logits = heads.decide(torch.relu(heads.tower(encoded)))
            likely = probabilities(logits if logits.shape[1] == 2 else logits[:, 0])
            for place, value in zip(asked, likely.tolist(), strict=True):
                found[place] = round(value, 6)
        return found


class DetectingMassTool:
    """One that was trained to tell whether a tool is needed: a Detector as well as a Retriever."""

    def __init__(self, inner: MassTool, threshold: float) -> None:
        self._inner, self.threshold, self.fingerprint = inner, threshold, inner.fingerprint

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        return self._inner.search(queries, k)

    def probabilities(self, queries: Sequence[str]) -> list[float]:
        return self._inner.needs(queries)
