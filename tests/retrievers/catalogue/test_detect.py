from __future__ import annotations

import json
from pathlib import Path

import pytest

from retrievers.catalogue import FORMATS, read_catalogue
from retrievers.catalogue.detect import detect_format
from retrievers.catalogue.source import CatalogueSource
from retrievers.errors import BadInput


@pytest.mark.parametrize(
    ("content", "format"),
    [
        ('{"_id": "a", "text": "b"}', "beir"),
        ('{"_id": "a"}\n{"_id": broken', "beir"),
        ({"openapi": "3.0.0"}, "openapi"),
        ({"swagger": "2.0"}, "openapi"),
        ("# comment\ninfo: {}\n'openapi': 3.1.0\n", "openapi"),
        ({"tools": [{"name": "a", "inputSchema": {}}]}, "mcp"),
        ({"jsonrpc": "2.0", "error": {}}, "mcp"),
        ({"tools": [], "nextCursor": "x"}, "mcp"),
        ([{"serverInfo": {}, "tools": []}], "mcp"),
        ([{"name": "a", "inputSchema": {}}], "mcp"),
        ('{"name": "a", "inputSchema": {}}\n{}', "mcp"),
        ([{"type": "function", "function": {}}], "functions"),
        ([{"name": "a", "input_schema": {}}], "functions"),
        ({"tools": [{"type": "function", "name": "a"}]}, "functions"),
        ({"functions": [{"name": "a"}]}, "functions"),
        ('{"name": "a"}\n{"name": "b"}', "functions"),
        ([], "functions"),
        ({"tool_name": "a", "api_list": []}, "toolbench"),
        ([{"tool_name": "a", "api_list": []}], "toolbench"),
        ("name,description\n", "csv"),
        ("\ufeffdescription;NAME\n", "csv"),
        ("nmae,description\n", "csv"),
        ("Dear diary,\n", None),
        ("42", None),
        ([1, 2], None),
        ({"hello": "world"}, None),
    ],
)
def test_the_content_tells_the_format(tmp_path: Path, content: object, format: str | None) -> None:
    path = tmp_path / "catalogue"
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1), "utf-8")
    assert detect_format(CatalogueSource.at(path)) == format


def test_what_fits_nothing_lists_the_formats(tmp_path: Path) -> None:
    path = tmp_path / "diary.txt"
    path.write_text("Dear diary,\n")
    with pytest.raises(BadInput) as caught:
        read_catalogue(path)
    assert all(format in str(caught.value) for format in FORMATS)
    assert str(path) in str(caught.value)


def test_broken_json_is_reported_as_that(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text('[\n  {"name": "a",}\n]')
    with pytest.raises(BadInput, match=r"tools.json, line 2: broken JSON"):
        read_catalogue(path)


def test_an_unknown_format_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown catalogue format 'openai', did you mean 'openapi'"):
        read_catalogue(tmp_path, "openai")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (Path("  "), "is blank"),
        (Path("no/such/file.json"), "no/such/file.json does not exist"),
        (Path("a\0b"), "does not exist"),
        (Path("x" * 5000), "no usable path"),
    ],
)
def test_paths_that_lead_nowhere(path: Path, says: str) -> None:
    for format in (None, *FORMATS):
        with pytest.raises(BadInput, match=says):
            read_catalogue(path, format)


def test_a_blank_path_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="is blank"):
        read_catalogue(Path(""))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_text(" \n")
    with pytest.raises(BadInput, match="empty is empty"):
        read_catalogue(path)


@pytest.mark.parametrize("format", ["openapi", "mcp", "functions", "csv"])
def test_a_folder_where_a_file_belongs(tmp_path: Path, format: str) -> None:
    with pytest.raises(BadInput, match="is a folder; name the file in it"):
        read_catalogue(tmp_path, format)


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_not_utf8_is_located_by_every_reader(tmp_path: Path, format: str) -> None:
    path = tmp_path / "latin"
    path.write_bytes(b"name\ncaf\xe9\n")
    with pytest.raises(BadInput, match="latin, line 2: not UTF-8 at byte offset 8; save the file as UTF-8"):
        read_catalogue(path, format)
