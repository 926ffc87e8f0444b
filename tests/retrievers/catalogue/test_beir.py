from __future__ import annotations

import json
from pathlib import Path

import pytest

from retrievers.catalogue import read_catalogue
from retrievers.errors import BadInput
from retrievers.types import Parameter, Tool

FERRY = {"_id": "ferry", "title": "ferry_times", "text": "When the next ferry leaves.", "metadata": {}}


def write(folder: Path, *lines: object) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        read_catalogue(path, "beir")
    return str(caught.value)


def test_a_row_becomes_a_tool(tmp_path: Path) -> None:
    parameters = [
        {"name": "harbour", "type": "string", "description": "Where from", "required": True},
        {"name": "day"},
        {"type": "string"},
        "loose",
    ]
    metadata = {"category": "Travel", "provider": " Island Lines ", "server": "no", "parameters": parameters, "n": 3}
    path = write(tmp_path, {**FERRY, "title": "  ferry_times\n", "metadata": metadata})
    assert read_catalogue(path) == [
        Tool(
            "ferry",
            "ferry_times",
            "When the next ferry leaves.",
            (Parameter("harbour", "string", "Where from", True), Parameter("day")),
            "Travel",
            "Island Lines",
        )
    ]


@pytest.mark.parametrize(
    ("metadata", "provider"),
    [
        ({"server": "S", "tool": "T"}, "S"),
        ({"tool": "T"}, "T"),
        ({"provider": 7, "server": "S"}, "S"),
        ({"provider": "  ", "tool": "T"}, "T"),
        (None, ""),
    ],
)
def test_the_provider_is_the_first_text_among_three(tmp_path: Path, metadata: object, provider: str) -> None:
    assert read_catalogue(write(tmp_path, {**FERRY, "metadata": metadata}))[0].provider == provider


def test_metadata_of_another_type_is_somebody_elses(tmp_path: Path) -> None:
    tool = read_catalogue(write(tmp_path, {**FERRY, "metadata": {"category": ["a"], "parameters": "x: int"}}))[0]
    assert (tool.category, tool.parameters) == ("", ())


def test_a_folder_reads_like_its_corpus(tmp_path: Path) -> None:
    path = write(tmp_path, FERRY, "", {**FERRY, "_id": "ferry2"})
    assert read_catalogue(tmp_path) == read_catalogue(tmp_path, "beir") == read_catalogue(path)


def test_a_corpus_without_titles_goes_by_its_ids(tmp_path: Path) -> None:
    assert read_catalogue(write(tmp_path, {"_id": "ferry", "text": "Leaves."}))[0].name == "ferry"


def test_line_ends_inside_strings_end_no_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = json.dumps({**FERRY, "text": "one\u2028two\x85three"}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + row.encode() + b"\r\n" + json.dumps({**FERRY, "_id": "b"}).encode() + b"\r\n")
    assert [tool.id for tool in read_catalogue(path)] == ["ferry", "b"]


def test_lone_surrogates_and_nuls_do_not_survive(tmp_path: Path) -> None:
    path = write(tmp_path, r'{"_id": "a\ud800", "title": "t\udfff\u0000", "text": "fine \ud83d\ude00 b' + "\0" + 'c"}')
    tool = read_catalogue(path)[0]
    assert (tool.id, tool.name, tool.description) == ("a?", "t?", "fine 😀 b c")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"_id": "b", "text": ', "line 2: broken JSON, expecting value at column"),
        ("not json", "line 2: broken JSON, expecting value at column 1"),
        ('{"_id": "b", "n": ' + "9" * 5000 + "}", "line 2: broken JSON, a number has too many digits"),
        ("[1]", "line 2: expected an object, found a list"),
        ('{"title": "b"}', "line 2: '_id' is missing or blank"),
        ('{"_id": "  "}', "line 2: '_id' is missing or blank"),
        ('{"_id": 4}', "line 2: '_id' has to be text, found a number"),
        ('{"_id": "b", "title": 4}', "line 2: 'title' has to be text, found a number"),
        ('{"_id": "b", "text": ["x"]}', "line 2: 'text' has to be text, found a list"),
        ('{"_id": "b", "metadata": "x"}', "line 2: 'metadata' has to be an object, found text"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = write(tmp_path, FERRY, line)
    assert refusal(path).startswith(f"{path}, {says}")
    assert "; " in refusal(path)  # and the way out


def test_a_duplicate_names_both_lines(tmp_path: Path) -> None:
    path = write(tmp_path, FERRY, {**FERRY, "_id": "b"}, "", FERRY)
    message = refusal(path)
    assert f"{path}, line 4: the id 'ferry' is already taken at {path}, line 1;" in message


def test_bytes_that_are_not_utf8_are_located(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(json.dumps(FERRY).encode() + b'\n{"_id": "caf\xe9"}')
    offset = path.read_bytes().index(b"\xe9")
    assert f"{path}, line 2: not UTF-8 at byte offset {offset};" in refusal(path)


def test_an_empty_corpus_is_refused(tmp_path: Path) -> None:
    assert "holds no tools" in refusal(write(tmp_path, "", "  "))


def test_a_folder_without_corpus_is_refused(tmp_path: Path) -> None:
    assert "has no corpus.jsonl" in refusal(tmp_path)
