"""Training data of retrievers: examples, labels, trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retrievers.errors import BadInput
from retrievers.types import ToolId


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of a trajectory."""

    thought: str
    tool: ToolId
    arguments: Mapping[str, Any]
    result: Any


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A task with the calls that solved it."""

    id: str
    task: str
    calls: tuple[Call, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class Examples:
    """Queries with the rows of the documents they need."""

    queries: tuple[str, ...]
    gold: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.queries)


@dataclass(frozen=True, slots=True)
class Labels:
    """Queries, and which of them need a tool."""

    queries: tuple[str, ...] = ()
    needs: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """One catalogue with its training and dev queries."""

    name: str
    documents: tuple[str, ...]
    train: Examples
    dev: Examples
    ids: tuple[ToolId, ...] = ()
    """Tool ids of the documents, for kinds that store which tools a query needs."""
    labels: Labels = Labels()
    dev_labels: Labels = Labels()
    trajectories: tuple[Trajectory, ...] = ()
    """Tasks solved with these tools, for kinds that learn to call them."""

    def __post_init__(self) -> None:
        if not self.train or not self.dev:
            raise BadInput(
                f"training on {self.name} needs train and dev queries; it has {len(self.train)} and {len(self.dev)}"
            )

    def candidates(self) -> list[int]:
        """Rows of the documents that some training query needs, the candidates of the softmax.

        A tool that is never right in training would be pushed away from every query, like every unseen tool.
        """
        return sorted({row for gold in self.train.gold for row in gold})
