"""The finished chunks of a job, on disk: append-only shards that a crash at any moment cannot spoil.

A chunk is a block of lines and a last line that seals it:

    +{"id": ...}              a row's outcome
    -{"line": 17, ...}        a bad row
    ={"chunk": 3, ..., "sha256": ...}

A block is written at once and flushed to the disk. What follows the last whole block of a shard is the work of a
process that died; it is cut off when the journal is opened, and its rows are done again. A later block of the same
chunk stands for the earlier one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from retrievers.files import sync_folder

SHARD_BYTES = 2**26
"""Bytes after which a new shard is begun."""
GOOD, BAD, SEAL = b"+", b"-", b"="


@dataclass(slots=True)
class Tally:
    """What became of rows."""

    rows: int = 0
    bad: int = 0
    asked: int = 0
    """Utterances that the model answered; the others were known already."""
    tokens: int = 0
    """What it wrote for them."""
    lines: int = 0
    statuses: dict[str, int] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Counts another one in."""
        for name in ("rows", "bad", "asked", "tokens", "lines"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for status, count in other.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + count


@dataclass(frozen=True, slots=True)
class Block:
    """Where a chunk lies."""

    shard: int
    start: int
    bytes: int
    tally: Tally


class Journal:
    """One process at a time writes it; the caller holds the lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.blocks: dict[int, Block] = {}
        """By chunk, in the order in which they were finished."""
        shards = sorted(folder.glob("shard-*.jsonl"))
        for path in shards:
            self._recover(path)
        self._shard = int(shards[-1].stem.removeprefix("shard-")) if shards else 0
        self._stream: IO[bytes] | None = None

    def append(self, chunk: int, lines: Sequence[bytes], tally: Tally) -> None:
        """Adds a finished chunk; when this returns, it is on the disk."""
        body = b"".join(line + b"\n" for line in lines)
        seal = {
            "chunk": chunk,
            "rows": tally.rows,
            "bad": tally.bad,
            "asked": tally.asked,
            "tokens": tally.tokens,
            "lines": tally.lines,
            "statuses": tally.statuses,
            "sha256": hashlib.sha256(body).hexdigest(),
        }
        stream = self._open()
        start = stream.tell()
        stream.write(body + SEAL + json.dumps(seal).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
        self._remember(chunk, Block(self._shard, start, len(body), tally))
        if stream.tell() > SHARD_BYTES:
            self.close()
            self._shard += 1

    def read(self, chunk: int) -> list[bytes]:
        """The lines of a chunk."""
        block = self.blocks[chunk]
        with self._path(block.shard).open("rb") as stream:
            stream.seek(block.start)
            return stream.read(block.bytes).split(b"\n")[:-1]

    def tally(self) -> Tally:
        """What became of all rows so far."""
        total = Tally()
        for block in self.blocks.values():
            total.add(block.tally)
        return total

    def close(self) -> None:
        """Closes the shard that is being written."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05}.jsonl"

    def _open(self) -> IO[bytes]:
        if self._stream is None:
            self._stream = self._path(self._shard).open("ab")
            sync_folder(self.folder)
        return self._stream

    def _remember(self, chunk: int, block: Block) -> None:
        self.blocks.pop(chunk, None)
        self.blocks[chunk] = block

    def _recover(self, path: Path) -> None:
        """Reads the seals of a shard and cuts off what follows the last whole block."""
        shard, end = int(path.stem.removeprefix("shard-")), 0
        with path.open("r+b") as stream:
            for chunk, start, size, tally in _whole(stream):
                self._remember(chunk, Block(shard, start, size, tally))
                end = stream.tell()
            if os.fstat(stream.fileno()).st_size > end:
                stream.truncate(end)
                os.fsync(stream.fileno())


def _whole(stream: IO[bytes]) -> Iterator[tuple[int, int, int, Tally]]:
    """The whole blocks at the beginning of a shard: chunk, start, size, tally."""
    start, digest, size = 0, hashlib.sha256(), 0
    while (line := stream.readline()).endswith(b"\n"):
        if not line.startswith(SEAL):
            digest.update(line)
            size += len(line)
            continue
        try:
            seal = json.loads(line[1:])
            if seal.pop("sha256") != digest.hexdigest():
                return
            chunk = int(seal.pop("chunk"))
            tally = Tally(**seal)
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        yield chunk, start, size, tally
        start, digest, size = stream.tell(), hashlib.sha256(), 0
