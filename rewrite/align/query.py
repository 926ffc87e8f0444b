"""What an alignment learns from: queries of several data sets, and a reward that knows which is which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rewrite.sft.examples import Example
from rewrite.types import Answer


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a data set."""

    source: str
    example: Example

    @property
    def key(self) -> str:
        """Its name among the queries of all data sets."""
        return f"{self.source}/{self.example.id}"


Reward = Callable[[Sequence[Query], Sequence[Answer]], list[float]]
"""One number for every answer to the query beside it. Trouble is raised; failure is never a number."""


def unique(queries: Sequence[Query]) -> list[Query]:
    """Each query once, in the order of their first appearance."""
    return list({query.key: query for query in queries}.values())
