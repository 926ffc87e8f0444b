"""The journal after a crash: every chunk that was sealed, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.batch import journal
from pipelines.batch.journal import ChunkJournal, RowCounts

CHUNKS = {0: [b'+{"a": 1}', b'-{"line": 2}'], 2: [b"+{}"], 1: []}


def write(folder: Path, chunks: dict[int, list[bytes]] = CHUNKS) -> ChunkJournal:
    made = ChunkJournal(folder)
    for number, lines in chunks.items():
        made.append(number, lines, RowCounts(rows=len(lines), statuses={"none": len(lines)}))
    made.close()
    return made


def held(folder: Path) -> dict[int, list[bytes]]:
    opened = ChunkJournal(folder)
    return {number: opened.read(number) for number in opened.blocks}


def test_what_is_appended_is_read_in_its_order(tmp_path: Path) -> None:
    write(tmp_path)
    assert list(held(tmp_path).items()) == list(CHUNKS.items())
    assert ChunkJournal(tmp_path).counts() == RowCounts(rows=3, statuses={"none": 3})


def test_cut_at_any_byte_the_whole_blocks_remain_and_work_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "whole")
    content = (tmp_path / "whole" / "shard-00000.jsonl").read_bytes()
    ends = [
        place + 1 for place, byte in enumerate(content) if byte == 10 and b"sha256" in content[:place].split(b"\n")[-1]
    ]
    assert len(ends) == 3
    for cut in range(len(content)):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "shard-00000.jsonl").write_bytes(content[:cut])
        whole = sum(end <= cut for end in ends)
        assert held(folder) == dict(list(CHUNKS.items())[:whole])
        assert (folder / "shard-00000.jsonl").stat().st_size == ([0, *ends][whole])
        write(folder, dict(list(CHUNKS.items())[whole:]))
        assert (folder / "shard-00000.jsonl").read_bytes() == content


def test_a_changed_byte_unseals_its_block(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "shard-00000.jsonl"
    path.write_bytes(path.read_bytes().replace(b"+{}", b"+[]"))
    assert list(held(tmp_path)) == [0]


def test_shards_are_closed_when_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SHARD_BYTES", 300)
    chunks = {number: [b"+" + b"x" * 200] for number in range(5)}
    write(tmp_path, chunks)
    assert len(list(tmp_path.glob("shard-*"))) == 5
    assert held(tmp_path) == chunks


def test_a_later_block_of_a_chunk_stands_for_the_earlier(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, {0: [b"+new"]})
    assert held(tmp_path)[0] == [b"+new"]
    assert ChunkJournal(tmp_path).counts().rows == 2


@given(st.binary(max_size=300))
def test_no_content_is_taken_for_a_block_that_was_never_sealed(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-journal"
    folder.mkdir(exist_ok=True)
    (folder / "shard-00000.jsonl").write_bytes(content)
    assert held(folder) == {}
