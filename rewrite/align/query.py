"""Queries of several data sets, and the type of a reward over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rewrite.sft.examples import Example
from rewrite.types import Answer


@dataclass(frozen=True, slots=True)
class AlignQuery:
    """An example of one data set."""

    source: str
    example: Example

    @property
    def key(self) -> str:
        """Name of the query among those of all data sets."""
        return f"{self.source}/{self.example.id}"


RewardFunction = Callable[[Sequence[AlignQuery], Sequence[Answer]], list[float]]
"""One reward per answer to the query of the same index. Failures are raised; a failure is never a number."""


def unique_queries(queries: Sequence[AlignQuery]) -> list[AlignQuery]:
    """Each query once, in the order of first appearance."""
    return list({query.key: query for query in queries}.values())
