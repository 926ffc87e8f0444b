"""The finished chunks of a job on disk: append-only shards that a crash at any moment cannot damage.

A chunk is a block of lines and a last line that seals it:

    +{"id": ...}              the outcome of a row
    -{"line": 17, ...}        a bad row
    ={"chunk": 3, ..., "sha256": ...}

A block is written at once and flushed to the disk. Data after the last whole block of a shard is left from a process
that died; it is cut off when the journal is opened, and its rows are done again. A later block of the same chunk
replaces the earlier one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from retrievers.files import sync_folder

SHARD_BYTES = 2**26
"""Size at which a new shard is started."""
GOOD, BAD, SEAL = b"+", b"-", b"="


@dataclass(slots=True)
class RowCounts:
    """Counts of finished rows."""

    rows: int = 0
    bad: int = 0
    answered: int = 0
    """Utterances that the model answered; the other answers were cached."""
    tokens: int = 0
    """Tokens of these answers."""
    lines: int = 0
    nothing_fits: int = 0
    """Rows that `min_score` or `min_probability` left without a tool."""
    not_reranked: int = 0
    """Rows in their first order because the reranker failed."""
    statuses: dict[str, int] = field(default_factory=dict)

    def add(self, other: RowCounts) -> None:
        """Add other counts to these."""
        for name in ("rows", "bad", "answered", "tokens", "lines", "nothing_fits", "not_reranked"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for status, count in other.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + count


@dataclass(frozen=True, slots=True)
class ChunkBlock:
    """The location of a chunk."""

    shard: int
    start: int
    bytes: int
    counts: RowCounts


class ChunkJournal:
    """Written by one process at a time; the caller holds the lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.blocks: dict[int, ChunkBlock] = {}
        """By chunk, in the order in which they were finished."""
        self._shard = 0
        for path in sorted(folder.glob("shard-*.jsonl")):
            self._shard = int(path.stem.removeprefix("shard-"))
            self._recover(path)
        self._stream: IO[bytes] | None = None

    def append(self, chunk: int, lines: Sequence[bytes], counts: RowCounts) -> None:
        """Add a finished chunk; it is on the disk when this returns."""
        body = b"".join(line + b"\n" for line in lines)
        seal = {"chunk": chunk, **asdict(counts), "sha256": hashlib.sha256(body).hexdigest()}
        if self._stream is None:
            self._stream = self._path(self._shard).open("ab")
            sync_folder(self.folder)
        start = self._stream.tell()
        self._stream.write(body + SEAL + json.dumps(seal).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._set_block(chunk, ChunkBlock(self._shard, start, len(body), counts))
        if self._stream.tell() > SHARD_BYTES:
            self.close()
            self._shard += 1

    def read(self, chunk: int) -> list[bytes]:
        """The lines of a chunk."""
        block = self.blocks[chunk]
        with self._path(block.shard).open("rb") as stream:
            stream.seek(block.start)
            return stream.read(block.bytes).split(b"\n")[:-1]

    def counts(self) -> RowCounts:
        """The counts of all chunks."""
        total = RowCounts()
        for block in self.blocks.values():
            total.add(block.counts)
        return total

    def close(self) -> None:
        """Close the shard that is being written."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05}.jsonl"

    def _set_block(self, chunk: int, block: ChunkBlock) -> None:
        self.blocks.pop(chunk, None)  # a later block goes to the end of the order
        self.blocks[chunk] = block

    def _recover(self, path: Path) -> None:
        """Read the seals of a shard and cut off what follows the last whole block."""
        end = 0
        with path.open("r+b") as stream:
            for chunk, start, size, counts in _whole_blocks(stream):
                self._set_block(chunk, ChunkBlock(self._shard, start, size, counts))
                end = stream.tell()
            if os.fstat(stream.fileno()).st_size > end:
                stream.truncate(end)
                os.fsync(stream.fileno())


def _whole_blocks(stream: IO[bytes]) -> Iterator[tuple[int, int, int, RowCounts]]:
    """The whole blocks at the beginning of a shard: chunk, start, size, counts."""
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
            counts = RowCounts(**seal)
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        yield chunk, start, size, counts
        start, digest, size = stream.tell(), hashlib.sha256(), 0
