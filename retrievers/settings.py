"""Settings of each kind of retriever. Imports no kind and no library, so that reading a config is fast."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from retrievers.errors import BadInput
from retrievers.types import Ranking

WARMUP = 0.05  # share of an encoder's training steps in which the learning rate rises
WEIGHT_DECAY = 0.01
HARD_NEGATIVES = 8  # hard negatives mined per query, where the catalogue has more documents than `candidates`


@dataclass(frozen=True, slots=True)
class TrainingSource:
    """A data set to learn from."""

    path: str
    """A data set folder, or `bundled:sample`."""
    text: tuple[str, ...] = ()
    """Parts of a tool that are read; empty: those of the index."""


@dataclass(frozen=True, slots=True)
class FusionSettings:
    """Fusion of several ranked lists into one."""

    method: Literal["interleave", "rrf", "max", "weighted", "add"] = "rrf"
    weights: tuple[float, ...] = ()
    """One per list, for rrf, weighted and add; empty: all equal."""
    rrf_k: Annotated[float, Gt(0)] = 60.0
    """Larger: middle ranks count more against top ranks."""

    def __post_init__(self) -> None:
        if any(weight < 0 for weight in self.weights) or (self.weights and not any(self.weights)):
            raise BadInput(f"must be numbers of 0 or more, not all 0, got {list(self.weights)}", "weights")


@dataclass(frozen=True, slots=True)
class RewriteFusion:
    """Fusion of the raw query's list with the lists of its rewrite."""

    method: Literal["interleave", "rrf", "weighted", "add"] = "add"
    """add: scores as they are, so that a list counts as much as it has to say; weighted: each list's scaled to 0..1."""
    raw: Annotated[float, Ge(0), Le(1)] = 0.8
    """Share of the raw query: 0 leaves it out, 1 leaves the rewrite out. Interleaving puts the larger share first."""
    rrf_k: Annotated[float, Gt(0)] = 10.0
    skip_rewrite_above: float | None = None
    """Score of the raw query's first tool from which on the query is not rewritten; none: every query is."""

    def skips_rewrite(self, raw: Ranking) -> bool:
        """True where the raw query's list is good enough."""
        return self.skip_rewrite_above is not None and bool(raw) and raw.scores[0] >= self.skip_rewrite_above


@dataclass(frozen=True, slots=True)
class BM25Settings:
    """Lexical search."""

    kind: Literal["bm25"] = "bm25"
    engine: Literal["bm25s", "rank_bm25"] = "bm25s"
    """rank_bm25 gives the same rankings some hundred times slower: for comparison."""
    k1: Annotated[float, Gt(0)] = 1.5
    b: Annotated[float, Ge(0), Le(1)] = 0.75
    names: Annotated[float, Ge(0), Le(100)] = 2.5
    """Bonus for a tool whose name is in the query, times the idf of the name; 0: none, as in published BM25."""


@dataclass(frozen=True, slots=True)
class EncoderTraining:
    """Tuning of an encoder on queries and the tools they need."""

    epochs: Annotated[int, Ge(1)] = 8
    batch_size: Annotated[int, Ge(1)] = 256
    learning_rate: Annotated[float, Gt(0)] = 2e-4
    temperature: Annotated[float, Gt(0)] = 0.05
    candidates: Annotated[int, Ge(1)] = 1024
    """Documents in the softmax: all that some training query needs, or else gold, hard negatives and a random fill."""
    max_length: Annotated[int, Ge(0)] = 256
    """Tokens read of a text; 0: the model's own limit."""
    patience: Annotated[int, Ge(1)] = 3
    """Epochs without a better dev recall before training stops."""
    blends: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Shares of the tuned weights tried on dev, the rest being the original model; 0: untuned, 1: all tuned."""

    def __post_init__(self) -> None:
        if not self.blends or any(not 0 <= blend <= 1 for blend in self.blends):
            raise BadInput(f"must be shares between 0 and 1, got {list(self.blends)}", "blends")


@dataclass(frozen=True, slots=True)
class MixtureTraining:
    """Training of one encoder on many data sets, for catalogues that it has never seen."""

    steps: Annotated[int, Ge(1)] = 1500
    batch_size: Annotated[int, Ge(2)] = 128
    """Queries per step, all of one data set."""
    learning_rate: Annotated[float, Gt(0)] = 1e-4
    temperature: Annotated[float, Gt(0)] = 0.05
    negatives: Annotated[int, Ge(0), Le(HARD_NEGATIVES)] = 2
    """Hard negatives per query, drawn from the nearest ones; the gold tools of the batch's other queries are added."""
    max_length: Annotated[int, Ge(0)] = 128
    """Tokens read of a text in training; 0: the model's own limit."""
    mixture: Annotated[float, Ge(0), Le(1)] = 0.5
    """A data set has steps in proportion to its size to this power; 0: all alike, 1: by size."""
    freeze: tuple[str, ...] = ("word_embeddings",)
    """Weights whose names contain one of these are not trained, which keeps the adapter small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseTraining(EncoderTraining):
    """Tuning of an encoder before it indexes, and the data for it."""

    data: tuple[TrainingSource, ...]
    """Several catalogues give a general encoder: batches come from one at a time, in proportion to their queries."""
    protocol: Literal["official", "unseen-tools", "late-tools"] = "official"
    hold_out: str = ""
    """Name of one of the data sets that is left out of training, to be tested on."""
    seed: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        EncoderTraining.__post_init__(self)
        if not self.data:
            raise BadInput("name at least one data set, got []", "data")


@dataclass(frozen=True, slots=True)
class DenseSettings:
    """Dense search with any sentence-transformers model."""

    kind: Literal["dense"] = "dense"
    model: str = "bundled:tools"
    """A Hugging Face id, a folder, or a bundled encoder: `bundled:tools`, `bundled:tools-multilingual`, …"""
    train: DenseTraining | None = None
    """Tune the model first; the tuned weights are stored in the index."""
    batch_size: Annotated[int, Ge(1)] = 64
    ann_above: Annotated[int, Ge(1)] = 50_000
    """Segments with more tools than this get an approximate (HNSW) index; smaller ones are searched exactly."""


@dataclass(frozen=True, slots=True)
class HybridSettings:
    """A fusion of other retrievers of the same index."""

    of: tuple[str, ...]
    kind: Literal["hybrid"] = "hybrid"
    fusion: FusionSettings | None = None
    """None: the scores of BM25 and one encoder are added (cosine + BM25 / 75), other parts are fused by rrf.
    `{method: add, weights: [1, 1, 0.5]}` adds those of BM25 and two encoders."""
    other_languages: tuple[str, ...] = ()
    """Retrievers asked in place of `of` about texts that are not English, such as a multilingual encoder."""

    def __post_init__(self) -> None:
        if len(self.of) < 2 or len(set(self.of)) < len(self.of):
            raise BadInput(f"name at least two different retrievers, got {list(self.of)}", "of")
        if self.fusion and self.fusion.weights and len(self.fusion.weights) != len(self.of):
            raise BadInput(f"{len(self.fusion.weights)} fusion weights for {len(self.of)} retrievers", "fusion")


def hybrid_parts(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of all retrievers that a hybrid asks, by its settings in a manifest; none for other kinds."""
    return tuple(dict.fromkeys((*settings.get("of", ()), *settings.get("other_languages", ()))))


@dataclass(frozen=True, slots=True)
class MilvusSettings:
    """Dense search with the vectors in Milvus, for catalogues larger than memory."""

    uri: str
    """A file (Milvus Lite, one process) or the address of a cluster, http://milvus:19530. Its token: $MILVUS_TOKEN."""
    kind: Literal["milvus"] = "milvus"
    model: str = "bundled:tools"
    """A Hugging Face id, a folder, or a bundled encoder: `bundled:tools`, `bundled:tools-multilingual`, …"""
    batch_size: Annotated[int, Ge(1)] = 64
    collection: str = "toolrewrite"
    """Name of the collection, to which the model's hash is appended."""
    index: str = "AUTOINDEX"
    """A Milvus index type: AUTOINDEX, FLAT, HNSW, DISKANN, …"""

    def __post_init__(self) -> None:
        if not self.uri or "@" in self.uri:
            raise BadInput("a file, or an address without a password; the token is in $MILVUS_TOKEN", "uri")
        if not re.fullmatch(r"[A-Za-z_]\w{0,200}", self.collection, re.ASCII):
            raise BadInput(f"must be letters, digits and _, no digit first, got {self.collection!r}", "collection")
