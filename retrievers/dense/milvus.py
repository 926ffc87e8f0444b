"""Search by meaning for catalogues whose vectors do not fit into memory: they lie in Milvus, by the hash of their text.

The index keeps a key a tool, eight bytes. What Milvus finds is mapped back by those keys, and what is not of this
version of the index (removed tools, older texts) is passed over, so that the rule of all indexes holds: a reader keeps
the version that it opened. Keys are numbers: no text of a catalogue or of a user ever gets into a filter expression.

`uri` is a file for Milvus Lite, inside this process, or the address of a cluster. Vectors that are there already are
not made again, so that of several gateways one embeds.
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
from retrievers.dense.retriever import DenseKind
from retrievers.errors import ModelMissing, StoreDown
from retrievers.kind import Arrays, Block, Context
from retrievers.rows import Rows
from retrievers.settings import DenseSettings, MilvusSettings
from retrievers.text import clean
from retrievers.types import Ranking

AT_ONCE = 2_000
"""Texts embedded and sent at a time: what is in memory of a catalogue that does not fit there."""
MOST = 16_384
"""Places that Milvus gives at the most."""


class MilvusKind:
    """Keys on disk, vectors in Milvus."""

    def __init__(self, settings: MilvusSettings, context: Context, trained: Path | None = None) -> None:
        self._settings = settings
        # Milvus is where vectors are kept; a cache of them beside it would hold everything a second time.
        plain = DenseSettings(model=settings.model, batch_size=settings.batch_size, ann_above=1 << 60)
        self._dense = DenseKind(plain, context, trained)
        self._store = _Store(settings, self._dense.encoder.fingerprint)

    def identity(self) -> dict[str, str]:
        return self._dense.identity()

    def rows(self, documents: Sequence[str]) -> Arrays:
        texts = [clean(document) for document in documents]
        keys = np.array([_key(text) for text in texts], dtype=np.int64)
        for start in range(0, len(texts), AT_ONCE):
            by_key = dict(zip(keys[start : start + AT_ONCE].tolist(), texts[start : start + AT_ONCE], strict=True))
            for known in self._store.known(list(by_key)):
                del by_key[known]
            if by_key:
                self._store.put(list(by_key), self._dense.rows(list(by_key.values()))["vectors"])
        return {"keys": keys}

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        return {"keys": np.concatenate([block.arrays["keys"][block.live] for block in blocks])}

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        keys = np.concatenate([block.arrays["keys"] for block in blocks])
        return Milvus(self._store, self._dense.encoder, keys, rows, fingerprint)


class Milvus:
    """Asks Milvus, and keeps of its answers what this version of the index holds."""

    def __init__(self, store: _Store, encoder: Encoder, keys: np.ndarray, rows: Rows, fingerprint: str) -> None:
        self._store, self._encoder, self._rows, self.fingerprint = store, encoder, rows, fingerprint
        live = np.flatnonzero(rows.live)
        order = np.argsort(keys[live], kind="stable")
        self._places = live[order]  # rows in the order of their keys: equal texts stand together
        self._keys = keys[self._places]

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        texts = [clean(query) for query in queries]
        asked = [place for place, text in enumerate(texts) if text]
        answers = [Ranking()] * len(texts)
        if asked and len(self._keys):
            vectors = self._encoder.queries([texts[place] for place in asked])
            for place, ranking in zip(asked, self._search(vectors, k), strict=True):
                answers[place] = ranking
        return answers

    def _search(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        """Asks for more places until enough of them are ours."""
        wanted, limit = min(k, len(self._keys)), min(MOST, 2 * k + 10)
        while True:
            found = self._store.search(vectors, limit)
            mine = [self._mine(keys, scores) for keys, scores in found]
            whole = limit == MOST or all(len(keys) < limit for keys, _ in found)
            if whole or all(len(rows) >= wanted for rows, _ in mine):
                return [self._rows.ranking(rows, scores, k) for rows, scores in mine]
            limit = min(MOST, limit * 4)

    def _mine(self, keys: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of these keys, every tool of an equal text."""
        first = np.searchsorted(self._keys, keys, "left")
        counts = np.searchsorted(self._keys, keys, "right") - first
        starts = np.repeat(first - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) if len(keys) else first
        return self._places[np.arange(counts.sum()) + starts], np.repeat(scores, counts)


class _Store:
    """One collection: the vectors of one model."""

    def __init__(self, settings: MilvusSettings, model: str) -> None:
        self._settings, self._name, self._there = settings, f"{settings.collection}_{model}", False

    def known(self, keys: list[int]) -> list[int]:
        """Those of the keys that have a vector."""
        with _told(self._settings) as client:
            if not self._exists(client):
                return []
            return [int(row["key"]) for row in client.get(self._name, ids=keys, output_fields=["key"])]

    def put(self, keys: list[int], vectors: np.ndarray) -> None:
        """Keeps vectors; they can be found when this returns."""
        with _told(self._settings) as client:
            if not self._exists(client):
                self._create(client, vectors.shape[1])
            client.upsert(
                self._name, [{"key": key, "vector": vector} for key, vector in zip(keys, vectors, strict=True)]
            )

    def search(self, vectors: np.ndarray, limit: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Keys and scores, best first, for each vector."""
        with _told(self._settings) as client:
            self._exists(client)
            level = self._settings.consistency
            found = client.search(self._name, data=list(vectors), limit=limit, consistency_level=level)
        return [
            (
                np.array([hit["key"] for hit in hits], dtype=np.int64),
                np.array([hit["distance"] for hit in hits], dtype=np.float32),
            )
            for hits in found
        ]

    def _exists(self, client: Any) -> bool:
        if not self._there and client.has_collection(self._name):
            client.load_collection(self._name)
            self._there = True
        return self._there

    def _create(self, client: Any, dimensions: int) -> None:
        from pymilvus import DataType

        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimensions)
        index = client.prepare_index_params()
        index.add_index("vector", index_type=self._settings.index, metric_type="IP")
        client.create_collection(
            self._name, schema=schema, index_params=index, consistency_level=self._settings.consistency
        )


def _key(text: str) -> int:
    return int.from_bytes(text_key(text)[:8], "little", signed=True)


@contextmanager
def _told(settings: MilvusSettings) -> Iterator[Any]:
    """A client, and its errors as ours. Its own log would repeat whole requests."""
    try:
        from pymilvus import MilvusException
    except ModuleNotFoundError as error:
        raise ModelMissing(f"Milvus needs {error.name}; run `pip install 'toolrewrite[milvus]'`") from error
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    try:
        yield _client(settings.uri, os.environ.get(settings.token_variable, ""))
    except MilvusException as error:
        reason = str(getattr(error, "message", "")).splitlines()
        raise StoreDown(
            f"Milvus at {settings.uri} does not answer ({reason[0][:200] if reason else 'no reason'})"
        ) from None


@lru_cache(maxsize=16)
def _client(uri: str, token: str) -> Any:
    from pymilvus import MilvusClient

    if "://" not in uri:
        Path(uri).parent.mkdir(parents=True, exist_ok=True)
    return MilvusClient(uri, token=token)
