from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retrievers.catalogue.collection import read_catalogues
from retrievers.catalogue.source import MAX_BYTES
from retrievers.errors import BadInput
from retrievers.types import Tool


def api(title: str = "Pets", version: str = "1.0.0", server: str = "https://pets.example", **paths: Any) -> str:
    operations = {f"/{path}": {"get": {"operationId": path, "summary": f"{path} of {server}"}} for path in paths}
    document = {"openapi": "3.1.0", "info": {"title": title, "version": version}, "servers": [{"url": server}]}
    return json.dumps({**document, "paths": operations})


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.json").write_text(text, "utf-8")


def read(*sources: Path | str, **more: Any) -> tuple[list[Tool], list[str]]:
    reports: list[str] = []
    return read_catalogues([str(source) for source in sources], report=reports.append, **more), reports


def ids(tools: list[Tool]) -> list[str]:
    return [tool.id for tool in tools]


def refusal(*sources: Path | str, **more: Any) -> str:
    with pytest.raises(BadInput) as caught:
        read(*sources, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_folders_and_globs_are_read_once_each(tmp_path: Path) -> None:
    write(tmp_path / "apis", a=api("A", list=1))
    write(tmp_path / "apis" / "deep", b=api("B", list=1))
    write(tmp_path / "apis" / ".hidden", c=api("C", list=1))
    write(tmp_path / "apis", package='{"name": "website", "description": "no tool"}')
    for sources in (
        [tmp_path / "apis"],
        [tmp_path / "apis" / "**" / "?.json"],
        [tmp_path / "apis" / "a.json", tmp_path / "apis" / "*", tmp_path / "apis"],
    ):
        tools, reports = read(*sources)
        assert (ids(tools), reports) == (["a/list", "b/list"], [])


def test_a_folder_with_catalogues_of_every_format(tmp_path: Path) -> None:
    write(tmp_path, a=api("A", list=1), b='{"tools": [{"name": "lamp", "inputSchema": {}}]}')
    (tmp_path / "c.csv").write_text("name,description\nsort,Sort a list\n", "utf-8")
    (tmp_path / "notes.txt").write_text("openapi: 3.0.0", "utf-8")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "corpus.jsonl").write_text('{"_id": "1", "title": "t", "text": "x"}\n', "utf-8")
    (tmp_path / "set" / "queries.jsonl").write_text('{"_id": "q", "text": "not a tool"}\n', "utf-8")
    assert ids(read(tmp_path)[0]) == ["a/list", "lamp", "sort", "1"]


def test_what_is_no_catalogue_is_reported_and_skipped(tmp_path: Path) -> None:
    write(tmp_path, a=api("A", list=1), broken='{"openapi": ', empty="", none=api("Empty"), other='{"x": 1}')
    tools, reports = read(tmp_path)
    assert ids(tools) == ["a/list"]
    assert len(reports) == 4
    for report, name, says in zip(
        reports,
        ("broken", "empty", "none", "other"),
        ("broken JSON", "is empty", "holds no tools", "in no known format"),
        strict=True,
    ):
        assert report.startswith(f"skipped: {tmp_path / name}.json")
        assert says in report
        assert "\n" not in report


def test_a_wrong_operation_is_skipped_and_the_rest_of_its_file_read(tmp_path: Path) -> None:
    operations = {"/a": {"get": {"parameters": [{"in": "query"}]}}, "/b": {"get": {}}, "/c": {"$ref": "#/nowhere"}}
    write(tmp_path, a=json.dumps({"openapi": "3.0.0", "info": {"title": "A"}, "paths": operations}))
    tools, reports = read(tmp_path / "a.json")
    assert ids(tools) == ["a/GET /b"]
    assert ["GET /a, parameters[0]" in reports[0], "the $ref '#/nowhere'" in reports[1]] == [True, True]


def test_an_argument_with_a_broken_reference_stays_without_its_details(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}, "b": {"type": "string"}}}
    operation = {"requestBody": {"content": {"application/json": {"schema": schema}}}}
    write(tmp_path, a=json.dumps({"openapi": "3.0.0", "info": {"title": "A"}, "paths": {"/a": {"post": operation}}}))
    [tool], reports = read(tmp_path / "a.json")
    assert [parameter.name for parameter in tool.parameters] == ["a", "b"]
    assert len(reports) == 1


def test_where_nothing_can_be_read_one_sentence_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no catalogue (.json" in refusal(tmp_path / "empty")
    assert "matches no file" in refusal(tmp_path / "*.yaml")
    assert "does not exist" in refusal(tmp_path / "none.yaml")
    assert "is blank" in refusal(" ")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    assert "not UTF-8" in refusal(tmp_path / "photo.png")
    write(tmp_path / "two", a="[", b="{")
    assert "none of 2 files holds tools that can be read" in refusal(tmp_path / "two")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(MAX_BYTES * 2)
    assert "has 200 MB, a catalogue file at most 100; split it" in refusal(tmp_path / "large.json")


def test_versions_of_an_api_live_side_by_side(tmp_path: Path) -> None:
    write(tmp_path, a=api(list=1), b=api(version="2.1.0", list=1, show=1), c=api(version="2.1.0", list=1))
    tools, reports = read(tmp_path)
    assert ids(tools) == ["pets/list", "pets-v2/list", "pets-v2/show", "pets-c/list"]
    assert [tool.provider for tool in tools] == ["Pets", "Pets v2", "Pets v2", "Pets c"]
    assert f"{tmp_path / 'b.json'}: 1 of its ids are taken by {tmp_path / 'a.json'}" in reports[0]


def test_files_with_one_title_and_version_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    write(tmp_path, vendor_chat_v1=api(list=1), vendor_chat_v3=api(server="https://three", list=1))
    write(tmp_path / "v4", vendor_chat_v1=api(server="https://four", list=1))
    assert ids(read(tmp_path)[0]) == ["pets/list", "pets-v3/list", "pets-v4/list"]


def test_a_wrong_row_is_skipped_and_the_rest_of_its_file_read(tmp_path: Path) -> None:
    files = {
        "functions.jsonl": '{"name": "a"}\n{"name": "b",\n[1]\n{"name": "a"}\n{"name": "c"}\n',
        "list.json": '[{"name": "a"}, 7, {"nam": "b"}, {"name": "a"}, {"name": "c"}]',
        "corpus.jsonl": '{"_id": "a"}\n{"title": "b"}\n{"_id": "a"}\n{"_id": "c", "text": 3}\n{"_id": "c"}\n',
        "table.csv": "name,description\na,\n,b\na,\nx,y,z\nc,\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
        tools, reports = read(tmp_path / name)
        assert ids(tools) == ["a", "c"]
        assert len(reports) == 3
        assert all(report.startswith(f"skipped: {tmp_path / name}, ") for report in reports)


def test_many_wrong_entries_are_counted(tmp_path: Path) -> None:
    write(tmp_path, many=json.dumps([{"name": "a"}, *[{"nam": "b"}] * 50]))
    _, reports = read(tmp_path / "many.json")
    assert len(reports) == 21
    assert reports[-1] == f"skipped: 30 more entries of {tmp_path / 'many.json'}"


def test_a_copy_of_a_file_is_reported_and_skipped(tmp_path: Path) -> None:
    write(tmp_path, a=api(list=1), b=api(list=1))
    tools, reports = read(tmp_path)
    assert ids(tools) == ["pets/list"]
    assert reports == [f"skipped: 1 tools of {tmp_path / 'b.json'} are the same in {tmp_path / 'a.json'}"]


def test_a_collision_names_the_two_files(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(
            tmp_path,
            **{name: json.dumps([{"name": name}, {"name": "same" if name != "a" else "x", "description": name}])},
        )
    message = refusal(tmp_path)
    assert f"'same' is both in {tmp_path / 'b.json'} and in {tmp_path / 'c.json'}" in message
    assert "a.json" not in message
    tools, _ = read(tmp_path, providers={str(tmp_path / "c.json"): "C"})
    assert ids(tools)[-2:] == ["C/c", "C/same"]
    assert tools[-1].provider == "C"


def test_a_provider_belongs_to_a_file_or_to_a_source(tmp_path: Path) -> None:
    write(tmp_path, a=api(list=1), b=api(show=1))
    tools, _ = read(tmp_path, providers={str(tmp_path): "All", str(tmp_path / "b.json"): "Mine"})
    assert ids(tools) == ["all/list", "mine/show"]
    assert "no catalogue is called 'c.json'" in refusal(tmp_path, providers={"c.json": "x"})


def test_a_broken_file_of_a_toolbench_tree_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "Food").mkdir()
    (tmp_path / "Food" / "a.json").write_text("{", "utf-8")
    (tmp_path / "Food" / "b.json").write_text('{"tool_name": "b", "api_list": [{"name": "cook"}]}', "utf-8")
    tools, reports = read(tmp_path)
    assert ids(tools) == ["Food/b/cook"]
    assert len(reports) == 1
