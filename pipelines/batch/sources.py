"""Inputs of any size, read in chunks: JSON lines, plain text, CSV, Parquet; plain, gzip or zstd.

A row that cannot be read is given as an exception in its place; a file that cannot be read on is an error.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from pipelines.batch.rows import Raw, Shape, Unusable, shape_of
from pipelines.batch.settings import InputSettings
from retrievers.errors import BadInput

LONGEST = 2**23
"""Bytes of a line; what is longer is not read into memory."""
ENDINGS: dict[str, Literal["jsonl", "csv", "parquet", "txt"]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".txt": "txt",
}
PACKED = {".gz": "gzip", ".zst": "zstd"}
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
Chunk = tuple[int, list[tuple[int, Raw]]]
"""Its number, and its rows with theirs."""


class Chunked(Protocol):
    """Rows in chunks."""

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All rows, `size` at a time."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """A file of rows. Small, and the same on every machine that sees the file."""

    path: Path
    format: Literal["jsonl", "csv", "parquet", "txt"]

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All rows, `size` at a time."""
        yield from _in_chunks(self._rows(), size)

    def shape(self) -> Shape:
        """What the first row that is not blank looks like."""
        if self.format != "jsonl":
            return "plain"
        return next((shape_of(raw) for _, raw in self._rows() if raw != b""), "plain")

    def measure(self) -> tuple[str, int]:
        """The hash of the content, packed or not, and about how many rows it has."""
        digest, rows, last = hashlib.sha256(self.format.encode()), 0, b"\n"
        with self._open() as stream:
            while block := stream.read(2**20):
                digest.update(block)
                rows += block.count(b"\n")
                last = block[-1:]
        if self.format == "parquet":
            return digest.hexdigest(), _parquet(self.path).metadata.num_rows
        return digest.hexdigest(), max(0, rows + (last != b"\n") - (self.format == "csv"))

    def _rows(self) -> Iterator[tuple[int, Raw]]:
        if self.format == "parquet":
            yield from _parquet_rows(self.path)
            return
        with self._open() as stream:
            yield from _csv_rows(stream, self.path) if self.format == "csv" else _lines(stream)

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        """The content, unpacked; what is wrong with the file is one sentence."""
        try:
            with self.path.open("rb") as file:
                packing = None if self.format == "parquet" else MAGIC.get(file.read(2)) or MAGIC.get(_first(file, 4))
                file.seek(0)
                if packing == "gzip":
                    yield io.BufferedReader(gzip.GzipFile(fileobj=file))
                elif packing == "zstd":
                    import pyarrow

                    with pyarrow.input_stream(
                        file, compression="zstd"
                    ) as stream:  # unlike others tells what is cut short
                        yield io.BufferedReader(stream)
                else:
                    yield file
        except FileNotFoundError as error:
            raise BadInput(f"no input file {self.path}") from error
        except IsADirectoryError as error:
            raise BadInput(f"{self.path} is a folder; give the file that holds the rows") from error
        except (OSError, zlib.error, EOFError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise BadInput(f"{self.path} is damaged or cut short ({error}); unpack or copy it again") from error


@dataclass(frozen=True, slots=True)
class Piped:
    """Rows that come once, through a pipe."""

    stream: IO[bytes]
    format: Literal["jsonl", "csv", "txt"]

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All rows, `size` at a time."""
        rows = _csv_rows(self.stream, Path("standard input")) if self.format == "csv" else _lines(self.stream)
        yield from _in_chunks(rows, size)


def _in_chunks(rows: Iterator[tuple[int, Raw]], size: int) -> Iterator[Chunk]:
    for number in itertools.count():
        held = list(itertools.islice(rows, size))
        if not held:
            return
        yield number, held


def open_source(path: Path, settings: InputSettings) -> Source:
    """The source that a file is, by its name unless the settings say it."""
    endings = [ending.lower() for ending in path.suffixes]
    if endings and endings[-1] in PACKED:
        endings.pop()
    found = settings.format or (ENDINGS.get(endings[-1]) if endings else None)
    if found is None:
        raise BadInput(
            f"{path} does not tell its format by its name; say it with --set input.format=jsonl (or csv, parquet, txt)"
        )
    return Source(path.expanduser().absolute(), found)


def _first(file: IO[bytes], count: int) -> bytes:
    file.seek(0)
    return file.read(count)


def _lines(stream: IO[bytes]) -> Iterator[tuple[int, Raw]]:
    for number in itertools.count(1):
        line = stream.readline(LONGEST)
        if not line:
            return
        if len(line) == LONGEST and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = stream.readline(LONGEST)
            yield number, Unusable(f"longer than {LONGEST} bytes")
        else:
            yield number, line.rstrip(b"\r\n")


def _csv_rows(stream: IO[bytes], path: Path) -> Iterator[tuple[int, Raw]]:
    """Rows by the names in the first one; a row's number is that of the line on which it begins."""
    lines = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(lines)
    head = next(reader, None)
    if not head or len(set(head)) != len(head):
        raise BadInput(f"{path}: the first line of a CSV file names its columns, each once")
    for _ in itertools.count():
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, Unusable(f"not CSV ({error})")
            continue
        if not cells:
            yield number, Unusable("empty")
        elif len(cells) != len(head):
            yield number, Unusable(f"{len(cells)} cells where there are {len(head)} columns")
        else:
            yield number, dict(zip(head, cells, strict=True))


def _parquet(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except FileNotFoundError as error:
        raise BadInput(f"no input file {path}") from error
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise BadInput(f"{path} is not a Parquet file ({' '.join(str(error).split())})") from error


def _parquet_rows(path: Path) -> Iterator[tuple[int, Raw]]:
    number = 0
    for batch in _parquet(path).iter_batches(batch_size=1024):
        for cells in batch.to_pylist():
            number += 1
            yield number, cells
