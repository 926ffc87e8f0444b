"""Bad rows, tried again: mended in the input, allowed by a wider limit, refused by a server that thinks better of it.

Good rows must read as they did; they are not asked again.
"""

from __future__ import annotations

import json

from pipelines.batch.engines import Todo
from pipelines.batch.expand import Done
from pipelines.batch.journal import BAD, GOOD, Journal, Tally
from pipelines.batch.rows import Row, RowReader
from pipelines.batch.sources import Chunk, Source
from retrievers.errors import BadInput


def again(source: Source, size: int, reader: RowReader, journal: Journal) -> Todo:
    """What is left to do of a finished job: its bad rows."""
    only: dict[int, frozenset[int]] = {}
    seen = 0
    for chunk in source.chunks(size):
        seen += 1
        if chunk[0] not in journal.blocks:
            raise BadInput("this job is not finished yet; run it without --retry-errors first")
        bad = _bad(journal.read(chunk[0]))
        _check_good(chunk, bad, reader, journal)
        if bad:
            only[chunk[0]] = frozenset(bad)
    if seen != len(journal.blocks):
        raise BadInput("the input has fewer rows than before; only its bad rows may change")
    return Todo(source, size, frozenset(), only)


def merged(done: Done, journal: Journal) -> tuple[list[bytes], Tally]:
    """A chunk's lines and tally with its bad rows' new outcomes in place of the old ones."""
    new = iter(done.lines)
    lines = [next(new) if line.startswith(BAD) else line for line in journal.read(done.chunk)]
    tally, before = Tally(), journal.blocks[done.chunk].tally
    tally.add(before)
    tally.add(done.tally)
    tally.rows, tally.bad = before.rows, done.tally.bad
    return lines, tally


def _bad(lines: list[bytes]) -> list[int]:
    return [int(json.loads(line[1:])["line"]) for line in lines if line.startswith(BAD)]


def _check_good(chunk: Chunk, bad: list[int], reader: RowReader, journal: Journal) -> None:
    good = [json.loads(line[1:]) for line in journal.read(chunk[0]) if line.startswith(GOOD)]
    rows = [reader.read(number, raw) for number, raw in chunk[1] if number not in set(bad)]
    for row, before in zip(rows, good, strict=False):
        if not isinstance(row, Row) or (row.id, row.text) != (before["id"], before["text"]):
            raise BadInput(f"line {row.number} was good before and reads otherwise now; only bad rows may change")
    if len(rows) != len(good):
        raise BadInput("the input has more or fewer rows than before; only its bad rows may change")
