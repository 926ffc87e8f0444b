"""Whatever a file holds, a reader answers with tools or with BadInput."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrievers.catalogue import FORMATS, read_catalogue
from retrievers.errors import BadInput
from retrievers.types import Tool

WORDS = (
    "_id title text metadata parameters category provider openapi info paths /a get post requestBody content schema "
    "application/json $ref #/a # type object array properties required items enum anyOf allOf tools result name "
    "inputSchema serverInfo function description tool_name api_list required_parameters in query tags operationId "
    "3.0.0 swagger 2.0 host basePath schemes consumes definitions body formData file servers url variables security"
).split()
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(WORDS)
KEYS = st.sampled_from(WORDS) | st.text(max_size=4)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=25
)
FEW = settings(max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck))
FORMAT = pytest.mark.parametrize("format", [None, *FORMATS])


def reads_or_refuses(folder: Path, raw: bytes, format: str | None) -> bool:
    """True where the catalogue was read, or refused, as it is promised; what is not as promised fails in here."""
    path = folder / "fuzzed"
    path.write_bytes(raw)
    tools: list[Tool] = []
    refused = ""
    try:
        tools = read_catalogue(path, format)
    except BadInput as error:
        refused = str(error)
    if refused:
        assert str(path) in refused
        refused.encode("utf-8")
        return True
    assert len({tool.id for tool in tools}) == len(tools) > 0
    for tool in tools:
        assert tool.id
        assert tool.name == tool.name.strip() != ""
        repr(tool).encode("utf-8")
        if tool.schema:
            assert isinstance(json.loads(tool.schema, parse_constant=pytest.fail), dict)
    return True


@FORMAT
@FEW
@given(raw=st.binary(max_size=200))
def test_bytes(tmp_path: Path, format: str | None, raw: bytes) -> None:
    assert reads_or_refuses(tmp_path, raw, format)


@FORMAT
@FEW
@given(text=st.text(alphabet=st.sampled_from("{}[]\",:;#&*!|>?-%@`'\\ \n\t\0ab1<~\ufeff\u2028é"), max_size=80))
def test_punctuation(tmp_path: Path, format: str | None, text: str) -> None:
    assert reads_or_refuses(tmp_path, text.encode(), format)
    assert reads_or_refuses(tmp_path, f"name,parameters\nopenapi: 3.0.0\n{text}".encode(), format)


@FORMAT
@FEW
@given(value=VALUES)
def test_json_values(tmp_path: Path, format: str | None, value: Any) -> None:
    assert reads_or_refuses(tmp_path, json.dumps(value).encode(), format)
    assert reads_or_refuses(tmp_path, json.dumps(value, indent=1).encode(), format)
    assert reads_or_refuses(tmp_path, f'{{"_id": "a", "name": "b"}}\n{json.dumps(value)}'.encode(), format)


@FEW
@given(value=VALUES, inner=VALUES)
def test_values_in_the_right_places(tmp_path: Path, value: Any, inner: Any) -> None:
    operation = {"parameters": [{"name": "p", "in": "query", "schema": value}], "requestBody": inner}
    body = {"content": {"application/json": {"schema": {"allOf": [value, {"$ref": "#/components"}]}}}}
    schema = {"properties": {"a": value, "b": inner}, "allOf": [inner], "$defs": value}
    document = {"openapi": "3.0.0", "info": {"title": "t"}, "components": value}
    document |= {"servers": inner, "security": value}
    swagger = {"swagger": "2.0", "info": {"title": "t"}, "definitions": value, "host": inner, "schemes": value}
    form = {"name": "c", "in": "formData", "type": value, "description": "d", "items": inner}
    for format, filled in (
        ("openapi", {**document, "paths": {"/a": {"get": operation, "parameters": inner}}}),
        ("openapi", {**document, "paths": {"/a": {"get": {"requestBody": body, "tags": inner}}}}),
        ("openapi", {**swagger, "paths": {"/a": {"post": {"parameters": [value, {"name": "b", "in": "body"}, form]}}}}),
        (
            "openapi",
            {**swagger, "paths": {"/a": {"get": {"parameters": [form], "consumes": inner, "security": value}}}},
        ),
        ("mcp", {"tools": [{"name": "a", "inputSchema": schema, "description": inner}]}),
        ("functions", [{"name": "a", "parameters": schema}, {"function": value}]),
        ("toolbench", {"tool_name": "t", "api_list": [{"name": "a", "required_parameters": value}, inner]}),
        ("beir", {"_id": "a", "title": "b", "metadata": {"parameters": value, "provider": inner}}),
    ):
        assert reads_or_refuses(tmp_path, json.dumps(filled).encode(), format)
        assert reads_or_refuses(tmp_path, json.dumps(filled).encode(), None)


@FEW
@given(cells=st.lists(st.text(max_size=12) | VALUES.map(json.dumps), max_size=6))
def test_csv_cells(tmp_path: Path, cells: list[str]) -> None:
    quoted = ",".join('"' + cell.encode("utf-8", "replace").decode().replace('"', '""') + '"' for cell in cells)
    assert reads_or_refuses(tmp_path, f"name,parameters,id,description,category,provider\n{quoted}\n".encode(), "csv")


def test_a_toolbench_tree_of_anything(tmp_path: Path) -> None:
    (tmp_path / "fuzzed" / "Food").mkdir(parents=True)
    for content in (b"", b"\xff", b"[]", b"null", b'{"tool_name": "a", "api_list": [{}]}', b"[" * 5000):
        (tmp_path / "fuzzed" / "Food" / "a.json").write_bytes(content)
        for format in (None, "toolbench", "beir"):
            with pytest.raises(BadInput):
                read_catalogue(tmp_path / "fuzzed", format)
