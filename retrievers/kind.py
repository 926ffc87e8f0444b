"""Protocols of a retriever kind, and the context it is made with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from retrievers.base import FindModel, Retriever, VectorCache
from retrievers.rows import Rows
from retrievers.training_set import TrainingSet
from retrievers.types import Tool, ToolId

Arrays = dict[str, np.ndarray]
Measure = Callable[[Sequence[str], Sequence[Sequence[Any]], Sequence[Collection[Any]]], dict[str, np.ndarray]]
"""Metrics by name (`recall@5`), one value per query, of rankings and the gold items of each query."""


def _no_measure(*_: object) -> dict[str, np.ndarray]:
    raise AssertionError("a Context without `measure` cannot train")


@dataclass(frozen=True, slots=True)
class Block:
    """One retriever's rows in one segment."""

    arrays: Arrays
    live: np.ndarray


@dataclass(frozen=True, slots=True)
class Context:
    """Everything a retriever needs from outside its folder."""

    find_model: FindModel
    cache: Path | None = None
    """Folder of embeddings kept between builds; None: nothing is kept."""
    show_progress: bool = False
    """Show progress on standard error: bars on a terminal, lines elsewhere."""
    device: str | None = None
    """cpu, cuda or mps; None: the best one present."""
    encoders: dict[str, Any] = field(default_factory=dict)
    """Encoders already loaded, by fingerprint of their weights."""
    artifacts: dict[str, Any] = field(default_factory=dict)
    """The artifacts that MassTool read last, by the folder and the retriever of an index."""
    vectors: Callable[[str], VectorCache] | None = None
    """Returns the vector cache of a model by its fingerprint; None: a file in `cache`."""
    engine: str = "transformers"
    """Engine of a generative retriever's language model: transformers or vllm."""
    vllm: Callable[[], Callable[..., Any]] | None = None
    """Returns the function that starts vLLM with a model folder and options; raises where vLLM is not installed."""
    measure: Measure = _no_measure
    """Metrics of rankings, passed in because their one definition is in reward/metrics.py. Needed to train."""


class Kind(Protocol):
    """One way to search: makes the rows of an index folder and opens them."""

    def identity(self) -> dict[str, str]:
        """Facts that must be the same when the index is opened or changed, such as the hash of the encoder."""

    def rows(self, documents: Sequence[str]) -> Arrays:
        """Arrays for a new segment of these documents."""

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        """Arrays of one segment holding the live rows of several."""

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        """A retriever over all segments; `other(name)` opens another retriever of the same index."""


@runtime_checkable
class Trainable(Protocol):
    """A kind that can train its own model before it indexes."""

    def train(self, sets: Sequence[TrainingSet], work: Path) -> Path:
        """Train in the work folder, or resume a killed run there; return the folder of the model."""


@runtime_checkable
class LearnsFromFeedback(Protocol):
    """A kind that ranks higher the tools which similar queries were confirmed to need."""

    def feedback_keys(self, queries: Sequence[str]) -> np.ndarray:
        """(queries, dimensions): vectors by which similar queries are found."""

    def load_feedback(self, keys: np.ndarray, pairs: list[tuple[str, tuple[ToolId, ...]]]) -> None:
        """Use these confirmed queries in the retriever that is opened next."""


@runtime_checkable
class ReadsNames(Protocol):
    """A kind that reads the names of tools as well as their texts."""

    def rows_with_names(self, documents: Sequence[str], names: Sequence[str]) -> Arrays:
        """`Kind.rows` with the name of each tool."""


@runtime_checkable
class NeedsTools(Protocol):
    """A kind that gives every tool its own identity, so that it needs the tools and not only their texts."""

    def tool_rows(self, tools: Sequence[Tool], documents: Sequence[str]) -> Arrays:
        """`Kind.rows` with the tools."""

    def train_tools(
        self, tools: Sequence[Tool], documents: Sequence[str], sets: Sequence[TrainingSet], work: Path
    ) -> Path:
        """`Trainable.train` with the catalogue to learn."""


@runtime_checkable
class SeesExistingRows(Protocol):
    """A kind whose new rows must differ from the rows in the index."""

    def see_existing_rows(self, blocks: Sequence[Block]) -> None:
        """Receive the rows of the index before new ones are made."""


@runtime_checkable
class KeepsCodes(Protocol):
    """A kind whose tools keep their codes when the index is trained again."""

    def keep_codes(self, ids: Sequence[ToolId], blocks: Sequence[Block]) -> None:
        """Receive the codes of the index, one per id, before training."""
