"""The chunks that are left to do, and the engine that expands them in this process (`ray_engine` does it on Ray).

With --retry-errors the bad rows of a finished job are left: corrected in the input, allowed by a higher limit, or
refused by a server before. Good rows must read as before and are not expanded again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from pipelines.batch.answer_cache import AnswerCache
from pipelines.batch.expand import Expander, FinishedChunk
from pipelines.batch.journal import BAD, GOOD, ChunkJournal, RowCounts
from pipelines.batch.plan import BatchPlan, load_parts
from pipelines.batch.rows import InputRow, RowReader
from pipelines.batch.sources import Chunk, InputFile
from retrievers.errors import BadInput


@dataclass(frozen=True, slots=True)
class PendingChunks:
    """The chunks of a source that are not done yet. Small enough to be sent to other machines."""

    source: InputFile
    size: int
    skip: frozenset[int]
    only: dict[int, frozenset[int]] | None = None
    """Where set, these rows of these chunks and no others."""

    def chunks(self) -> Iterator[Chunk]:
        """The chunks in order."""
        for number, rows in self.source.chunks(self.size):
            if self.only is not None:
                chosen = self.only.get(number, frozenset())
                rows = [row for row in rows if row[0] in chosen]
            if rows and number not in self.skip:
                yield number, rows


class ChunkEngine(Protocol):
    """Expands chunks."""

    def run(self, pending: PendingChunks, cache: AnswerCache) -> Iterator[FinishedChunk]:
        """Yield finished chunks in any order. The caller caches a chunk's answers before it takes the next."""
        ...


@dataclass(frozen=True, slots=True)
class InProcessEngine:
    """Expands chunks in this process."""

    plan: BatchPlan
    reader: RowReader
    device: str | None = None

    def run(self, pending: PendingChunks, cache: AnswerCache) -> Iterator[FinishedChunk]:
        return self.expand(pending.chunks(), pending.size, cache)

    def expand(self, chunks: Iterator[Chunk], size: int, cache: AnswerCache) -> Iterator[FinishedChunk]:
        """Load models only where there is a chunk to expand."""
        first = next(chunks, None)
        if first is None:
            return
        parts = load_parts(self.plan, self.device)
        expander = Expander(parts, self.reader, self.plan.key_function(), cache, self.plan.config.k)
        yield from expander.run(chain([first], chunks), size)


def pending_bad_rows(source: InputFile, size: int, reader: RowReader, journal: ChunkJournal) -> PendingChunks:
    """The bad rows of a finished job."""
    only: dict[int, frozenset[int]] = {}
    count = 0
    for number, rows in source.chunks(size):
        count += 1
        if number not in journal.blocks:
            raise BadInput("this job is not finished yet; run it without --retry-errors first")
        lines = journal.read(number)
        bad = frozenset(int(json.loads(line[1:])["line"]) for line in lines if line.startswith(BAD))
        good = [json.loads(line[1:]) for line in lines if line.startswith(GOOD)]
        now = [reader.read(row, raw) for row, raw in rows if row not in bad]
        for row, before in zip(now, good, strict=False):
            if not isinstance(row, InputRow) or (row.id, row.text) != (before["id"], before["text"]):
                raise BadInput(f"line {row.number} was good before and reads otherwise now; only bad rows may change")
        if len(now) != len(good):
            raise BadInput("the input has more or fewer rows than before; only its bad rows may change")
        if bad:
            only[number] = bad
    if count != len(journal.blocks):
        raise BadInput("the input has fewer rows than before; only its bad rows may change")
    return PendingChunks(source, size, frozenset(), only)


def merge_retried(finished: FinishedChunk, journal: ChunkJournal) -> tuple[list[bytes], RowCounts]:
    """A chunk's lines and counts with the new outcomes of its bad rows in place of the old ones."""
    new = iter(finished.lines)
    lines = [next(new) if line.startswith(BAD) else line for line in journal.read(finished.chunk)]
    counts, before = RowCounts(), journal.blocks[finished.chunk].counts
    counts.add(before)
    counts.add(finished.counts)
    counts.rows, counts.bad = before.rows, finished.counts.bad
    return lines, counts
