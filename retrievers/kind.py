"""Protocols of a retriever kind: what it must implement to live in an index folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from retrievers.base import FindModel, Retriever, VectorCache
from retrievers.rows import Rows
from retrievers.training_set import TrainingSet
from retrievers.types import Tool, ToolId

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Block:
    """One retriever's share of one segment."""

    arrays: Arrays
    live: np.ndarray


@dataclass(frozen=True, slots=True)
class Context:
    """What a retriever may need of the world outside its folder."""

    find_model: FindModel
    cache: Path | None = None
    """Where embeddings are kept between builds; None: nowhere."""
    show_progress: bool = False
    device: str | None = None
    """cpu, cuda, mps; None: the best there is."""
    encoders: dict[str, Any] = field(default_factory=dict)
    """Encoders already loaded, by fingerprint of their weights."""
    vectors: Callable[[str], VectorCache] | None = None
    """Who keeps the vectors of a model, by its fingerprint; None: a file in `cache`."""
    engine: str = "transformers"
    """What runs the language model of a generative retriever: transformers or vllm."""
    vllm: Callable[[], Callable[..., Any]] | None = None
    """Who starts vLLM. Called, it refuses where there is none, or gives what starts it with a model's folder and vLLM's
    options; that which is started has vLLM's `generate`."""


class Kind(Protocol):
    """One way to search, as it is kept on disk."""

    def identity(self) -> dict[str, str]:
        """Facts that must still hold when the index is opened or changed, such as the hash of the encoder."""
        ...

    def rows(self, documents: Sequence[str]) -> Arrays:
        """Arrays for a new segment of these documents."""
        ...

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        """Arrays of one segment holding the live rows of several."""
        ...

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        """A retriever over all segments; `other(name)` opens another retriever of the same index."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A kind that can train a model of its own before it indexes."""

    def train(self, sets: Sequence[TrainingSet], work: Path) -> Path:
        """Trains in the work folder, going on where a killed run stopped; returns the folder of the model."""
        ...


@runtime_checkable
class Rememberer(Protocol):
    """A kind that remembers which tools a query turned out to need, and finds them for the next one like it."""

    def remember(self, queries: Sequence[str]) -> np.ndarray:
        """(queries, dimensions): what each is recognised by."""
        ...

    def recall(self, keys: np.ndarray, pairs: list[tuple[str, tuple[ToolId, ...]]]) -> None:
        """What was remembered so far, for the retriever that is opened next."""
        ...


@runtime_checkable
class Speller(Protocol):
    """A kind that gives every tool an identity of its own, and so must know who is in which row."""

    def tool_rows(self, tools: Sequence[Tool], documents: Sequence[str]) -> Arrays:
        """As `Kind.rows`, with the tools themselves."""
        ...

    def train_tools(
        self, tools: Sequence[Tool], documents: Sequence[str], sets: Sequence[TrainingSet], work: Path
    ) -> Path:
        """As `Learner.train`, with the catalogue that is to be learned."""
        ...


@runtime_checkable
class Neighbour(Protocol):
    """A kind whose new rows must not be like those that the index holds."""

    def know(self, blocks: Sequence[Block]) -> None:
        """What the index holds, before more is added."""
        ...


@runtime_checkable
class Keeper(Protocol):
    """A kind that gives tools something which has to stay when its index is built further."""

    def keep(self, ids: Sequence[ToolId], blocks: Sequence[Block]) -> None:
        """What the index holds, and which tool is in which row, before it is trained further."""
        ...
