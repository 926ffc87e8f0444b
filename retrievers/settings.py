"""What can be set of each kind of retriever. Stdlib only, so that reading a config costs nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt

from retrievers.errors import BadInput
from retrievers.types import Ranking


@dataclass(frozen=True, slots=True)
class TrainingSource:
    """A data set to learn from."""

    path: str
    """A data set folder, or `bundled:sample`."""
    text: tuple[str, ...] = ()
    """Which parts of a tool are read; the index's own when not given."""


@dataclass(frozen=True, slots=True)
class FusionSettings:
    """How several ranked lists become one."""

    method: Literal["interleave", "rrf", "max", "weighted"] = "rrf"
    weights: tuple[float, ...] = ()
    """One a list, for rrf and weighted; empty: all equal."""
    rrf_k: float = 60.0
    """Larger: the lists' middles count more against their tops."""
    depth: int = 100
    """How far into each list is looked."""

    def __post_init__(self) -> None:
        if any(weight < 0 for weight in self.weights) or (self.weights and not any(self.weights)):
            raise BadInput("fusion weights must not be negative, and not all zero")
        if self.rrf_k <= 0 or self.depth < 1:
            raise BadInput("rrf_k and depth must be positive")


@dataclass(frozen=True, slots=True)
class RewriteFusion:
    """How the list of the raw query and the lists of its rewrite become one."""

    method: Literal["interleave", "rrf", "weighted"] = "weighted"
    raw: float = 0.5
    """The raw query's share: 0 leaves it out, 1 leaves the rewrite out. Interleaving only asks which one is larger."""
    rrf_k: float = 10.0
    depth: int = 100
    """How far into each list is looked."""
    sure: float | None = None
    """A raw query whose first tool scores at least this is not rewritten; none: every one is."""

    def is_sure(self, raw: Ranking) -> bool:
        """Whether the raw query's list stands as it is."""
        return self.sure is not None and bool(raw) and raw.scores[0] >= self.sure

    def __post_init__(self) -> None:
        if not 0 <= self.raw <= 1 or self.rrf_k <= 0 or self.depth < 1:
            raise BadInput("raw is a share between 0 and 1; rrf_k and depth are positive")


@dataclass(frozen=True, slots=True)
class BM25Settings:
    """Lexical search."""

    kind: Literal["bm25"] = "bm25"
    engine: Literal["bm25s", "rank_bm25"] = "bm25s"
    """rank_bm25 gives the same rankings some hundred times slower: for comparison."""
    k1: float = 1.5
    b: float = 0.75

    def __post_init__(self) -> None:
        if self.k1 <= 0 or not 0 <= self.b <= 1:
            raise BadInput(f"BM25 wants k1 > 0 and b between 0 and 1, not k1={self.k1:g}, b={self.b:g}")


@dataclass(frozen=True, slots=True)
class EncoderTraining:
    """How an encoder is tuned on queries and the tools they need."""

    epochs: Annotated[int, Ge(1)] = 8
    batch_size: Annotated[int, Ge(1)] = 256
    learning_rate: Annotated[float, Gt(0)] = 2e-4
    warmup: Annotated[float, Ge(0), Lt(1)] = 0.05
    """Share of all steps in which the learning rate rises."""
    weight_decay: Annotated[float, Ge(0)] = 0.01
    temperature: Annotated[float, Gt(0)] = 0.05
    candidates: Annotated[int, Ge(1)] = 1024
    """Documents in the softmax: all that some training query needs, or else gold, hard negatives and a random fill."""
    hard_negatives: Annotated[int, Ge(0)] = 8
    """Mined per query before training, where the catalogue has more than `candidates` documents."""
    max_length: Annotated[int, Ge(0)] = 256
    """Tokens read of a text; 0: the model's own limit."""
    patience: Annotated[int, Ge(1)] = 3
    """Epochs without a better dev recall before training stops."""
    blends: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Shares of the tuned weights tried on dev, the rest being the original model; 0: untuned, 1: all tuned."""

    def __post_init__(self) -> None:
        if not self.blends or any(not 0 <= blend <= 1 for blend in self.blends):
            raise BadInput(f"shares between 0 and 1, got {list(self.blends)}", "blends")


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseTraining(EncoderTraining):
    """Training data of an encoder, and how it is tuned before it indexes."""

    data: tuple[TrainingSource, ...]
    """Several catalogues give a general encoder: batches come from one at a time, in proportion to their queries."""
    protocol: Literal["official", "unseen-tools"] = "official"
    hold_out: str = ""
    """Name of one of the data sets that is left out of training, to be tested on."""
    seed: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        EncoderTraining.__post_init__(self)
        if not self.data:
            raise BadInput("name at least one data set, got []", "data")


@dataclass(frozen=True, slots=True)
class DenseSettings:
    """Search by meaning: any sentence-transformers model."""

    kind: Literal["dense"] = "dense"
    model: str = "bundled:minilm"
    """A Hugging Face id, a folder, or `bundled:minilm`."""
    train: DenseTraining | None = None
    """Tune the model first; the tuned weights are sealed with the index."""
    batch_size: int = 64
    ann_above: int = 50_000
    """Segments with more tools than this get an approximate (HNSW) index; smaller ones are searched exactly."""
    ann_links: int = 32
    ann_effort: int = 256
    """How many candidates an approximate search looks at; more is slower and closer to exact."""

    def __post_init__(self) -> None:
        if min(self.batch_size, self.ann_above, self.ann_links, self.ann_effort) < 1:
            raise BadInput("batch_size, ann_above, ann_links and ann_effort must be at least 1")


@dataclass(frozen=True, slots=True)
class HybridSettings:
    """A fusion of other retrievers of the same index."""

    of: tuple[str, ...]
    kind: Literal["hybrid"] = "hybrid"
    fusion: FusionSettings = FusionSettings()

    def __post_init__(self) -> None:
        if len(self.of) < 2 or len(set(self.of)) < len(self.of):
            raise BadInput("a hybrid is `of` at least two different retrievers")
        if self.fusion.weights and len(self.fusion.weights) != len(self.of):
            raise BadInput(f"{len(self.fusion.weights)} fusion weights for {len(self.of)} retrievers")


@dataclass(frozen=True, slots=True)
class MilvusSettings:
    """Search by meaning with the vectors in Milvus: for catalogues beyond memory."""

    uri: str
    """A file (Milvus Lite, one process) or the address of a cluster: http://milvus:19530."""
    kind: Literal["milvus"] = "milvus"
    model: str = "bundled:minilm"
    """A Hugging Face id, a folder, or `bundled:minilm`."""
    batch_size: int = 64
    collection: str = "toolrewrite"
    """The collection's name; that of the model is added."""
    index: str = "AUTOINDEX"
    """Milvus' own kinds of index: AUTOINDEX, FLAT, HNSW, DISKANN, …"""
    consistency: Literal["Strong", "Session", "Bounded", "Eventually"] = "Strong"
    """Strong: a tool is found as soon as it is added. The others are quicker, and later."""
    token_variable: str = "MILVUS_TOKEN"
    """The environment variable with the cluster's token, where it wants one."""

    def __post_init__(self) -> None:
        if not self.uri or "@" in self.uri:
            raise BadInput("a file, or an address without a password; the token is in $MILVUS_TOKEN", "uri")
        if not re.fullmatch(r"[A-Za-z_]\w{0,200}", self.collection, re.ASCII):
            raise BadInput("a collection's name is made of letters, digits and _", "collection")
        if self.batch_size < 1:
            raise BadInput("at least 1", "batch_size")
