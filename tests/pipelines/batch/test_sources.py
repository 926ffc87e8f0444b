"""Files of every format give the same rows; damage is told."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.batch import sources
from pipelines.batch.rows import InputRow, RowReader
from pipelines.batch.settings import InputSettings
from pipelines.batch.sources import InputFile, open_input
from retrievers.errors import BadInput

TEXTS = ["rain in Rome?", 'a "quoted", word', "zwei\nZeilen", "天气", "x" * 3000]


def write(folder: Path, name: str) -> Path:
    path, rows = folder / name, [{"id": f"q{n}", "text": text} for n, text in enumerate(TEXTS)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if name.endswith(".csv"):
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, ["id", "text"])
            writer.writeheader()
            writer.writerows(rows)
    elif name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines[:100]) + gzip.compress(lines[100:]))  # as `cat a.gz b.gz` makes them
    elif name.endswith(".zst"):
        path.write_bytes(b"".join(bytes(pyarrow.compress(part, "zstd")) for part in (lines[:100], lines[100:])))
    else:
        path.write_bytes(lines)
    return path


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.parquet", "in.jsonl.gz", "in.jsonl.zst", "IN.NDJSON"])
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    source = open_input(write(tmp_path, name), InputSettings())
    reader, rows = RowReader(InputSettings()), []
    for number, chunk in source.chunks(2):
        assert number == len(rows) // 2
        rows += [reader.read(place, raw) for place, raw in chunk]
    assert [(row.id, row.text) for row in rows if isinstance(row, InputRow)] == [
        (f"q{n}", text) for n, text in enumerate(TEXTS)
    ]


def test_the_hash_is_of_the_content_and_rows_are_counted(tmp_path: Path) -> None:
    plain, packed, other = (
        open_input(write(tmp_path, name), InputSettings()).measure() for name in ("in.jsonl", "in.jsonl.gz", "in.csv")
    )
    assert plain == packed
    assert plain[1] == 5
    assert other[0] != plain[0]
    assert open_input(write(tmp_path, "in.parquet"), InputSettings()).measure()[1] == 5


def test_plain_text_is_an_utterance_a_line(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\r\n\ntwo")
    source = open_input(tmp_path / "in.txt", InputSettings())
    assert next(source.chunks(9)) == (0, [(1, b"one"), (2, b""), (3, b"two")])
    assert source.measure()[1] == 3


def test_a_line_without_end_is_a_bad_row_and_not_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 100)
    (tmp_path / "in.jsonl").write_bytes(b'"' + b"x" * 1000 + b'"\n"short"\n' + b"y" * 99 + b"\n" + b"z" * 250)
    rows = next(open_input(tmp_path / "in.jsonl", InputSettings()).chunks(9))[1]
    assert [isinstance(raw, Exception) for _, raw in rows] == [True, False, False, True]
    assert rows[1] == (2, b'"short"')


def test_a_csv_row_of_another_width_is_bad_and_the_rest_is_not(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b"\xef\xbb\xbfid,text\na,one\nb\n\nc,three,more\nd,\xff\ne,five\n")
    reader = RowReader(InputSettings())
    rows = [reader.read(*row) for row in next(open_input(tmp_path / "in.csv", InputSettings()).chunks(9))[1]]
    assert [row.number for row in rows] == [2, 3, 4, 5, 6, 7]
    assert [row.id for row in rows if isinstance(row, InputRow)] == ["a", "e"]


def test_an_open_quote_ends_at_the_longest_field(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('text\n"open\n' + "word word word\n" * 20_000)
    rows = next(open_input(tmp_path / "in.csv", InputSettings()).chunks(50_000))[1]
    assert isinstance(rows[0][1], Exception)
    assert rows[-1] == (20_002, {"text": "word word word"})


@pytest.mark.parametrize("name", ["in.jsonl.gz", "in.jsonl.zst"])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInput, match="damaged or cut short"):
        open_input(path, InputSettings()).measure()
    path.write_bytes(path.read_bytes()[:40] + b"\0" * 40)
    with pytest.raises(BadInput, match="damaged or cut short"):
        open_input(path, InputSettings()).measure()


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("in.csv", b"", "names its columns"),
        ("in.csv", b"a,a\n1,2\n", "names its columns"),
        ("in.parquet", b"not parquet", "not a Parquet file"),
        ("gone.jsonl", None, "no input file"),
        ("gone.parquet", None, "no input file"),
        ("what.ever", b"x", "does not tell its format"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, name: str, content: bytes | None, complaint: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=complaint):
        list(open_input(tmp_path / name, InputSettings()).chunks(9))


def test_a_folder_is_not_an_input(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").mkdir()
    with pytest.raises(BadInput, match="is a folder"):
        InputFile(tmp_path / "in.jsonl", "jsonl").measure()


@given(st.binary(max_size=400), st.sampled_from(["csv", "jsonl", "txt"]), st.integers(1, 5))
def test_any_bytes_are_rows_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, format: str, size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-rows"
    path.write_bytes(content)
    source = InputFile(path, format)  # type: ignore[arg-type]
    try:
        numbers = [number for _, rows in source.chunks(size) for number, _ in rows]
    except BadInput:
        return
    assert numbers == sorted(numbers)
