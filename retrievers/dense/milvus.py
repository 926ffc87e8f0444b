"""Dense search for catalogues whose vectors do not fit into memory: Milvus stores them by the hash of their text.

The index stores a key of eight bytes per tool. Milvus' results are mapped back by those keys; vectors of other versions
of the index (removed tools, older texts) are skipped, so that a reader keeps the version that it opened. Keys are
numbers: no text of a catalogue or of a user gets into a filter expression.

`uri` is a file for Milvus Lite, inside this process, or the address of a cluster. Vectors that Milvus has are not
computed again, so that of several gateways one embeds.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from retrievers.base import Retriever
from retrievers.dense.embeddings import text_key
from retrievers.dense.encoder import Encoder
from retrievers.dense.retriever import DenseKind, search_texts
from retrievers.errors import ModelMissing, StoreDown
from retrievers.kind import Arrays, Block, Context
from retrievers.rows import Rows
from retrievers.settings import DenseSettings, MilvusSettings
from retrievers.text import clean
from retrievers.types import Ranking

CHUNK = 2_000  # texts embedded and sent at a time: the part of the catalogue that is in memory
MAX_RESULTS = 16_384  # Milvus' own limit per search
CONSISTENCY = "Strong"  # a tool is found as soon as it is added


class MilvusKind:
    """Keys on disk, vectors in Milvus."""

    def __init__(self, settings: MilvusSettings, context: Context, trained: Path | None = None) -> None:
        # No graph: the vectors that DenseKind computes go to Milvus.
        dense = DenseSettings(model=settings.model, batch_size=settings.batch_size, ann_above=1 << 60)
        self._dense = DenseKind(dense, context, trained)
        self._store = _Store(settings, self._dense.encoder.fingerprint)

    def identity(self) -> dict[str, str]:
        return self._dense.identity()

    def rows(self, documents: Sequence[str]) -> Arrays:
        texts = [clean(document) for document in documents]
        keys = np.array([_key(text) for text in texts], dtype=np.int64)
        for start in range(0, len(texts), CHUNK):
            missing = dict(zip(keys[start : start + CHUNK].tolist(), texts[start : start + CHUNK], strict=True))
            for known in self._store.known(list(missing)):
                del missing[known]
            if missing:
                self._store.put(list(missing), self._dense.rows(list(missing.values()))["vectors"])
        return {"keys": keys}

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        return {"keys": np.concatenate([block.arrays["keys"][block.live] for block in blocks])}

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        keys = np.concatenate([block.arrays["keys"] for block in blocks])
        return Milvus(self._store, self._dense.encoder, keys, rows, fingerprint)


class Milvus:
    """Searches Milvus and keeps the results that belong to this version of the index."""

    score_unit = 1.0

    def __init__(self, store: _Store, encoder: Encoder, keys: np.ndarray, rows: Rows, fingerprint: str) -> None:
        self._store, self._encoder, self._rows, self.fingerprint = store, encoder, rows, fingerprint
        live = np.flatnonzero(rows.live)
        self._sorted_rows = live[np.argsort(keys[live], kind="stable")]  # by key: equal texts are adjacent
        self._keys = keys[self._sorted_rows]

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        if not len(self._keys):
            return [Ranking()] * len(queries)
        return search_texts(self._encoder, queries, lambda vectors: self._search(vectors, k))

    def _search(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        """Raise the limit until enough results are of this version."""
        wanted, limit = min(k, len(self._keys)), min(MAX_RESULTS, 2 * k + 10)
        while True:
            results = self._store.search(vectors, limit)
            own = [self._own_rows(keys, scores) for keys, scores in results]
            complete = limit == MAX_RESULTS or all(len(keys) < limit for keys, _ in results)
            if complete or all(len(rows) >= wanted for rows, _ in own):
                return [self._rows.ranking(rows, scores, k) for rows, scores in own]
            limit = min(MAX_RESULTS, limit * 4)

    def _own_rows(self, keys: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of these keys, every tool of an equal text."""
        first = np.searchsorted(self._keys, keys, "left")
        counts = np.searchsorted(self._keys, keys, "right") - first
        starts = np.repeat(first - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) if len(keys) else first
        return self._sorted_rows[np.arange(counts.sum()) + starts], np.repeat(scores, counts)


class _Store:
    """One collection: the vectors of one model."""

    def __init__(self, settings: MilvusSettings, model: str) -> None:
        self._settings, self._name, self._loaded = settings, f"{settings.collection}_{model}", False

    def known(self, keys: list[int]) -> list[int]:
        """Those of the keys that have a vector."""
        with _client(self._settings) as client:
            if not self._load(client):
                return []
            return [int(row["key"]) for row in client.get(self._name, ids=keys, output_fields=["key"])]

    def put(self, keys: list[int], vectors: np.ndarray) -> None:
        """Store vectors; they can be searched when this returns."""
        with _client(self._settings) as client:
            if not self._load(client):
                self._create(client, vectors.shape[1])
            rows = [{"key": key, "vector": vector} for key, vector in zip(keys, vectors, strict=True)]
            client.upsert(self._name, rows)

    def search(self, vectors: np.ndarray, limit: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Keys and scores, best first, for each vector."""
        with _client(self._settings) as client:
            self._load(client)
            results = client.search(self._name, data=list(vectors), limit=limit, consistency_level=CONSISTENCY)
        return [
            (
                np.array([hit["key"] for hit in hits], dtype=np.int64),
                np.array([hit["distance"] for hit in hits], dtype=np.float32),
            )
            for hits in results
        ]

    def _load(self, client: Any) -> bool:
        """Load the collection where it exists."""
        if not self._loaded and client.has_collection(self._name):
            client.load_collection(self._name)
            self._loaded = True
        return self._loaded

    def _create(self, client: Any, dimensions: int) -> None:
        from pymilvus import DataType

        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimensions)
        index = client.prepare_index_params()
        index.add_index("vector", index_type=self._settings.index, metric_type="IP")
        client.create_collection(self._name, schema=schema, index_params=index, consistency_level=CONSISTENCY)


def _key(text: str) -> int:
    return int.from_bytes(text_key(text)[:8], "little", signed=True)


@contextmanager
def _client(settings: MilvusSettings) -> Iterator[Any]:
    """A client whose errors become StoreDown. Its own log, which would repeat whole requests, is silenced."""
    try:
        from pymilvus import MilvusException
    except ModuleNotFoundError as error:
        raise ModelMissing(f"Milvus needs {error.name}; run `pip install 'toolrewrite[milvus]'`") from error
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    try:
        yield _connect(settings.uri, os.environ.get("MILVUS_TOKEN", ""))
    except MilvusException as error:
        reason = str(getattr(error, "message", "")).splitlines()
        raise StoreDown(
            f"Milvus at {settings.uri} does not answer ({reason[0][:200] if reason else 'no reason'})"
        ) from None


@lru_cache(maxsize=16)
def _connect(uri: str, token: str) -> Any:
    from pymilvus import MilvusClient

    if "://" not in uri:
        Path(uri).parent.mkdir(parents=True, exist_ok=True)
    return MilvusClient(uri, token=token)
