"""Inputs of any size, read in chunks: JSON lines, plain text, CSV, Parquet; plain, gzip or zstd.

A row that cannot be read is yielded as an exception; a file that cannot be read further raises an error.
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
from typing import IO, Any

from pipelines.batch.rows import Raw, UnusableRow, shape_of
from pipelines.batch.settings import InputFormat, InputSettings, Shape
from retrievers.errors import BadInput

MAX_LINE_BYTES = 2**23
"""A longer line is a bad row and is not read into memory."""
FORMATS: dict[str, InputFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".txt": "txt",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
Chunk = tuple[int, list[tuple[int, Raw]]]
"""The number of the chunk, and its rows with their numbers."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of rows. Small, and the same on every machine that sees the file."""

    path: Path
    format: InputFormat

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All rows, `size` at a time."""
        yield from _in_chunks(self._rows(), size)

    def shape(self) -> Shape:
        """The shape of the first row that is not blank."""
        if self.format != "jsonl":
            return "plain"
        return next((shape_of(raw) for _, raw in self._rows() if raw != b""), "plain")

    def measure(self) -> tuple[str, int]:
        """The hash of the decompressed content, and about how many rows it has."""
        digest, rows, last = hashlib.sha256(self.format.encode()), 0, b"\n"
        with self._open() as stream:
            while block := stream.read(2**20):
                digest.update(block)
                rows += block.count(b"\n")
                last = block[-1:]
        if self.format == "parquet":
            return digest.hexdigest(), _open_parquet(self.path).metadata.num_rows
        return digest.hexdigest(), max(0, rows + (last != b"\n") - (self.format == "csv"))

    def _rows(self) -> Iterator[tuple[int, Raw]]:
        if self.format == "parquet":
            batches = _open_parquet(self.path).iter_batches(batch_size=1024)
            yield from enumerate((cells for batch in batches for cells in batch.to_pylist()), 1)
            return
        with self._open() as stream:
            yield from _csv_rows(stream, self.path) if self.format == "csv" else _lines(stream)

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        """Open the decompressed content; raise `BadInput` for a missing or damaged file."""
        try:
            with self.path.open("rb") as file:
                head = file.read(4)
                file.seek(0)
                compression = None if self.format == "parquet" else MAGIC.get(head[:2]) or MAGIC.get(head)
                if compression == "gzip":
                    yield io.BufferedReader(gzip.GzipFile(fileobj=file))
                elif compression == "zstd":
                    import pyarrow

                    # Unlike other readers, Arrow reports a truncated file.
                    with pyarrow.input_stream(file, compression="zstd") as stream:
                        yield io.BufferedReader(stream)
                else:
                    yield file
        except FileNotFoundError as error:
            raise BadInput(f"no input file {self.path}") from error
        except IsADirectoryError as error:
            raise BadInput(f"{self.path} is a folder; name the file that holds the rows") from error
        except (OSError, zlib.error, EOFError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise BadInput(f"{self.path} is damaged or cut short ({error}); unpack or copy it again") from error


@dataclass(frozen=True, slots=True)
class InputPipe:
    """Rows that can be read once."""

    stream: IO[bytes]
    format: InputFormat

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All rows, `size` at a time."""
        rows = _csv_rows(self.stream, Path("standard input")) if self.format == "csv" else _lines(self.stream)
        yield from _in_chunks(rows, size)


def _in_chunks(rows: Iterator[tuple[int, Raw]], size: int) -> Iterator[Chunk]:
    for number in itertools.count():
        chunk = list(itertools.islice(rows, size))
        if not chunk:
            return
        yield number, chunk


def open_input(path: Path, settings: InputSettings) -> InputFile:
    """The input file, its format by its name unless the settings name it."""
    endings = [ending.lower() for ending in path.suffixes]
    if endings and endings[-1] in COMPRESSIONS:
        endings.pop()
    chosen = settings.format or (FORMATS.get(endings[-1]) if endings else None)
    if chosen is None:
        raise BadInput(
            f"{path} does not tell its format by its name; set it with --set input.format=jsonl (or csv, parquet, txt)"
        )
    return InputFile(path.expanduser().absolute(), chosen)


def _lines(stream: IO[bytes]) -> Iterator[tuple[int, Raw]]:
    for number in itertools.count(1):
        line = stream.readline(MAX_LINE_BYTES)
        if not line:
            return
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = stream.readline(MAX_LINE_BYTES)
            yield number, UnusableRow(f"longer than {MAX_LINE_BYTES} bytes")
        else:
            yield number, line.rstrip(b"\r\n")


def _csv_rows(stream: IO[bytes], path: Path) -> Iterator[tuple[int, Raw]]:
    """Rows by the names in the first one; a row's number is that of its first line."""
    reader = csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline=""))
    head = next(reader, None)
    if not head or len(set(head)) != len(head):
        raise BadInput(f"{path}: the first line of a CSV file names its columns, each once")
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, UnusableRow(f"not CSV ({error})")
            continue
        if not cells:
            yield number, UnusableRow("empty")
        elif len(cells) != len(head):
            yield number, UnusableRow(f"{len(cells)} cells where there are {len(head)} columns")
        else:
            yield number, dict(zip(head, cells, strict=True))


def _open_parquet(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except FileNotFoundError as error:
        raise BadInput(f"no input file {path}") from error
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise BadInput(f"{path} is not a Parquet file ({' '.join(str(error).split())})") from error
