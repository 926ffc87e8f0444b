"""MassTool in an index folder: builds, trains and opens it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from retrievers.base import Retriever
from retrievers.dense.embeddings import embed
from retrievers.dense.encoder import Encoder
from retrievers.dense.retriever import Dense, with_graph
from retrievers.errors import BadInput, ModelMissing
from retrievers.kind import Arrays, Block, Context
from retrievers.masstool.artifacts import Artifacts, Pair, files_version, load_artifacts, untrained
from retrievers.masstool.pool import Pool
from retrievers.masstool.retriever import ConfirmedVotes, DetectingMassTool, MassTool
from retrievers.masstool.settings import MassToolSettings
from retrievers.rows import Rows
from retrievers.text import clean
from retrievers.training_set import TrainingSet


class MassToolKind:
    """Keeps two vectors per tool (for scores, and as signal to queries) and the artifacts of training."""

    def __init__(self, settings: MassToolSettings, context: Context, trained: Path | None = None) -> None:
        self._settings, self._context, self._trained = settings, context, trained
        tuned = trained / "encoder" if trained and (trained / "encoder").is_dir() else None
        encoder = Encoder(
            tuned or context.find_model(settings.model), settings.batch_size, context.device, context.cache
        )
        self._encoder: Encoder = context.encoders.setdefault(encoder.fingerprint, encoder)
        self._artifacts: Artifacts | None = None
        self._confirmed: tuple[np.ndarray, list[Pair]] | None = None

    def train(self, sets: Sequence[TrainingSet], work: Path) -> Path:
        if len(sets) != 1:
            raise BadInput(f"MassTool trains on one data set, got {len(sets)}", "data")
        try:
            from retrievers.masstool.training.pipeline import train
        except ModuleNotFoundError as error:
            raise ModelMissing(
                f"training MassTool needs {error.name}; run `pip install 'toolrewrite[torch]'`"
            ) from error
        return train(sets[0], self._settings, self._encoder, work, self._context)

    def identity(self) -> dict[str, str]:
        return {"weights": self._encoder.fingerprint}

    def rows(self, documents: Sequence[str]) -> Arrays:
        texts = [clean(document) for document in documents]
        vectors = embed(self._encoder, texts, self._context, model=self._settings.model)
        arrays = {"vectors": vectors}
        if self._trained is not None:
            arrays["vectors"], arrays["signals"] = self.artifacts(vectors.shape[1]).tool_vectors(texts, vectors)
        return with_graph(arrays, self._settings.ann_above)

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        names = [name for name in blocks[0].arrays if name != "graph"]
        arrays = {name: np.concatenate([block.arrays[name][block.live] for block in blocks]) for name in names}
        return with_graph(arrays, self._settings.ann_above)

    def feedback_keys(self, queries: Sequence[str]) -> np.ndarray:
        """Keys of queries that will be confirmed."""
        return self._encoder.queries([clean(query) for query in queries])

    def load_feedback(self, keys: np.ndarray, pairs: list[Pair]) -> None:
        """Confirmed queries, for the retriever that is opened next."""
        self._confirmed = keys, pairs

    def artifacts(self, dimensions: int) -> Artifacts:
        """Artifacts of training, read once."""
        if self._artifacts is None:
            trained, settings = self._trained, self._settings
            self._artifacts = self._load_artifacts(trained) if trained else untrained(settings, dimensions)
        return self._artifacts

    def _load_artifacts(self, trained: Path) -> Artifacts:
        """Those that were read last, if their files are the same: each change of an index makes its kinds anew."""
        slot, version = str(trained.parent / trained.name.rpartition("-")[0]), (trained, files_version(trained))
        known: tuple[object, MassToolSettings, Artifacts] | None = self._context.artifacts.get(slot)
        if known is None or known[:2] != (version, self._settings):
            known = version, self._settings, load_artifacts(trained, self._settings)
            self._context.artifacts[slot] = known
        return known[2]

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        dimensions = blocks[0].arrays["vectors"].shape[1]
        dense = Dense(self._encoder, blocks, rows, fingerprint)
        artifacts = self.artifacts(dimensions)
        arrays = [block.arrays.get("signals", block.arrays["vectors"]) for block in blocks]
        signals = partial(_read_rows, arrays)
        live = {rows.ids[row]: int(row) for row in np.flatnonzero(rows.live)}
        keys, pairs = self._confirmed or (np.zeros((0, dimensions), np.float32), [])
        confirmed_queries = {query for query, _ in pairs}

        def make_pool(without_dev: bool) -> Pool:
            replaced = confirmed_queries.union(artifacts.split_pool()[1] if without_dev else ())
            pool = Pool(artifacts.pool_keys, artifacts.pairs, live, signals, replaced)
            if artifacts.pool_graph is not None:
                pool.use_graph(artifacts.pool_graph)
            return pool

        heads = untrained(self._settings, dimensions).heads
        confirmed = ConfirmedVotes(Pool(keys, pairs, live, signals), heads, artifacts.heads.vote_scale)
        kind = MassTool if artifacts.threshold is None else DetectingMassTool
        return kind(self._encoder, dense, artifacts, make_pool, confirmed, rows)


def _read_rows(arrays: Sequence[np.ndarray], rows: list[int]) -> np.ndarray:
    """Some rows of several stacked arrays, without reading the others."""
    wanted, ends = np.asarray(rows, dtype=np.int64), np.cumsum([len(array) for array in arrays])
    values = np.empty((len(wanted), arrays[0].shape[1]), np.float32)
    owners = np.searchsorted(ends, wanted, side="right")
    for owner, array in enumerate(arrays):
        here = owners == owner
        values[here] = array[wanted[here] - (ends[owner] - len(array))]
    return values
