from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retrievers.catalogue import read_catalogue
from retrievers.catalogue.collection import read_catalogues
from retrievers.errors import BadInput
from retrievers.types import Parameter, Tool

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "room": {"type": "string", "description": " Which room "},
        "level": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "mode": {"$ref": "#/$defs/Mode"},
    },
    "required": ["room"],
    "$defs": {"Mode": {"enum": ["dim", "warm"], "description": "How it shines"}},
}
LAMP = {"name": "set_lamp", "title": "Lamp", "description": "Set a lamp.\n", "inputSchema": SCHEMA}
PARAMETERS = (
    Parameter("room", "string", "Which room", True),
    Parameter("level", "integer|null"),
    Parameter("mode", "enum(dim, warm)", "How it shines"),
)


def write(folder: Path, value: object) -> Path:
    path = folder / "answer.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return path


@pytest.mark.parametrize(
    "answer", [{"tools": [LAMP]}, {"jsonrpc": "2.0", "id": 1, "result": {"tools": [LAMP]}}, [LAMP], LAMP]
)
def test_every_shape_gives_the_same_tool(tmp_path: Path, answer: object) -> None:
    (tool,) = read_catalogue(write(tmp_path, answer))
    schema = json.dumps(SCHEMA, separators=(",", ":"))
    assert tool == Tool("set_lamp", "set_lamp", "Set a lamp.", PARAMETERS, schema=schema)
    assert json.loads(tool.schema) == SCHEMA


@pytest.mark.parametrize("inside", [True, False])
def test_the_server_is_the_provider(tmp_path: Path, inside: bool) -> None:
    info = {"serverInfo": {"name": "house", "version": "1"}}
    answer = {"result": {"tools": [LAMP], **(info if inside else {})}, **({} if inside else info)}
    (tool,) = read_catalogue(write(tmp_path, answer), "mcp")
    assert (tool.id, tool.name, tool.provider) == ("house/set_lamp", "set_lamp", "house")


def test_answers_of_several_servers_are_read_together(tmp_path: Path) -> None:
    answers = [{"serverInfo": {"name": server}, "tools": [LAMP]} for server in ("house", "shed")]
    assert [tool.id for tool in read_catalogue(write(tmp_path, answers))] == ["house/set_lamp", "shed/set_lamp"]
    lines = "\n".join(json.dumps(answer) for answer in answers)
    assert len(read_catalogue(write(tmp_path, lines), "mcp")) == 2


def test_a_tool_without_words_or_arguments(tmp_path: Path) -> None:
    bare = {"name": "ping", "title": "Are you there", "inputSchema": {"type": "object"}}
    (tool,) = read_catalogue(write(tmp_path, [bare]))
    assert tool == Tool("ping", "ping", "Are you there", schema='{"type":"object"}')


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"tools": []}, "holds no tools"),
        ({"tools": {}}, "'tools' has to be a list, found an object"),
        ({"tools": [LAMP, 7]}, "tools[1]: expected an object, found a number"),
        ({"tools": [{"inputSchema": {}}]}, "tools[0]: 'name' is missing"),
        ([LAMP, {"inputSchema": {}}], "entry 2: 'name' is missing"),
        ({"tools": [{"name": 4}]}, "tools[0]: 'name' has to be text, found a number"),
        ({"tools": [{"name": "a", "inputSchema": []}]}, "tools[0]: 'inputSchema' has to be an object"),
        ({"tools": [{"name": "a", "inputSchema": {"properties": []}}]}, "tools[0]: the schema's 'properties'"),
        ({"error": {"code": 1, "message": "not\nready"}}, "answered with an error (not ready); ask"),
        ({"hello": 1}, "no 'tools' and no 'result'"),
        ("[[]]", "entry 1: expected an object, found a list"),
        ("", "is empty"),
        ("{", "line 1: broken JSON"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, answer: object, says: str) -> None:
    path = write(tmp_path, answer)
    with pytest.raises(BadInput) as caught:
        read_catalogue(path, "mcp")
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_duplicate_names_both_places(tmp_path: Path) -> None:
    path = write(tmp_path, {"tools": [LAMP, {**LAMP, "name": "b"}, LAMP]})
    with pytest.raises(BadInput, match=r"tools\[2\]: the id 'set_lamp' is already taken at .*tools\[0\];"):
        read_catalogue(path)


def test_a_value_nested_too_deeply_is_bad_input(tmp_path: Path) -> None:
    nested = '{"items":' * 5000 + "1" + "}" * 5000
    with pytest.raises(BadInput, match="nests its values too deeply"):
        read_catalogue(write(tmp_path, f'{{"tools":[{{"name":"a","inputSchema":{nested}}}]}}'))


@pytest.mark.parametrize("envelope", [lambda page: page, lambda page: {"jsonrpc": "2.0", "id": 1, "result": page}])
def test_half_a_list_is_not_taken_for_the_whole(tmp_path: Path, envelope: Any) -> None:
    first = envelope({"tools": [LAMP], "nextCursor": "2"})
    last = envelope({"tools": [LAMP | {"name": "set_heat"}], "nextCursor": None})
    with pytest.raises(BadInput, match=r"more tools \(nextCursor\).*rewrite-index mcp"):
        read_catalogue(write(tmp_path, first))
    assert [tool.name for tool in read_catalogue(write(tmp_path, [first, last]))] == ["set_lamp", "set_heat"]


@pytest.mark.parametrize("key", ["mcpServers", "servers"])
def test_a_clients_list_of_servers_is_told_from_a_list_of_tools(tmp_path: Path, key: str) -> None:
    with pytest.raises(BadInput, match=r"lists MCP servers, not their tools; .*rewrite-index mcp"):
        read_catalogue(write(tmp_path, {key: {"files": {"command": "npx", "args": ["-y", "some-server"]}}}))


def test_a_folder_is_one_catalogue_only_where_its_format_says_so(tmp_path: Path) -> None:
    write(tmp_path, {"tools": [LAMP]})
    with pytest.raises(BadInput, match=r"is a folder.*`read_catalogues` reads the files in it"):
        read_catalogue(tmp_path)


def test_a_wrong_tool_of_several_is_reported_and_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, {"tools": [LAMP, {"description": "no name"}, 7, {"name": "b", "inputSchema": []}]})
    with pytest.raises(BadInput, match="'name' is missing"):
        read_catalogue(path)
    reports: list[str] = []
    assert [tool.name for tool in read_catalogues([str(path)], report=reports.append)] == [LAMP["name"]]
    assert [report.partition(", tools")[2] for report in reports] == [
        "[1]: 'name' is missing or blank; give every entry one",
        "[2]: expected an object, found a number; write it as {…}",
        "[3]: 'inputSchema' has to be an object, found a list; write it as {…}",
    ]


def test_hints_about_calls_are_kept(tmp_path: Path) -> None:
    hints = {"destructiveHint": True, "readOnlyHint": "no", "title": "Wipe"}
    tools = [{"name": "wipe", "inputSchema": {"type": "object"}, "annotations": hints}]
    tools += [{"name": "odd", "inputSchema": {"type": "object"}, "annotations": 7}]
    assert [tool.call for tool in read_catalogue(write(tmp_path, tools))] == [
        '{"annotations":{"destructiveHint":true}}',
        "",
    ]
