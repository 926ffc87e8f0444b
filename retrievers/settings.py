"""What can be set of each kind of retriever. Stdlib only, so that reading a config costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from retrievers.errors import BadInput


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
class DenseSettings:
    """Search by meaning: any sentence-transformers model."""

    kind: Literal["dense"] = "dense"
    model: str = "bundled:minilm"
    """A Hugging Face id, a folder, or `bundled:minilm`."""
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


RetrieverSettings = BM25Settings | DenseSettings | HybridSettings
