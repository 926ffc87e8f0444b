"""What is left to do, and the two ways of doing it: in this process, or on Ray."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from pipelines.batch.answer_cache import Answers
from pipelines.batch.expand import Done, Expander
from pipelines.batch.plan import Plan, load
from pipelines.batch.rows import RowReader
from pipelines.batch.sources import Chunk, Chunked


@dataclass(frozen=True, slots=True)
class Todo:
    """The chunks of a source that are not done yet. Small enough to be sent anywhere."""

    source: Chunked
    size: int
    skip: frozenset[int]
    only: dict[int, frozenset[int]] | None = None
    """Where set, these rows of these chunks and no others."""

    def chunks(self) -> Iterator[Chunk]:
        """One after the other."""
        for number, rows in self.source.chunks(self.size):
            if self.only is not None:
                chosen = self.only.get(number, frozenset())
                rows = [row for row in rows if row[0] in chosen]
            if rows and number not in self.skip:
                yield number, rows


class Engine(Protocol):
    """Somebody who expands chunks."""

    def run(self, todo: Todo, answers: Answers) -> Iterator[Done]:
        """Finished chunks in any order. Whoever takes one keeps its answers before the next."""
        ...


@dataclass(frozen=True, slots=True)
class Local:
    """In this process."""

    plan: Plan
    reader: RowReader
    device: str | None = None

    def run(self, todo: Todo, answers: Answers) -> Iterator[Done]:
        """Loads models only where there is something to do."""
        chunks = todo.chunks()
        first = next(chunks, None)
        if first is None:
            return

        def all_of_them() -> Iterator[Chunk]:
            yield first
            yield from chunks

        expander = Expander(load(self.plan, self.device), self.reader, self.plan.keys(), answers, self.plan.config.k)
        yield from expander.run(all_of_them(), todo.size)
