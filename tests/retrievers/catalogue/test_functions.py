from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retrievers.catalogue import read_catalogue
from retrievers.catalogue.schema import compact, parameters_of, type_of
from retrievers.errors import BadInput
from retrievers.types import Parameter, Tool

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"pages": {"type": "array", "items": {"type": "integer"}}, "ink": {"type": ["string", "null"]}},
    "required": ["pages"],
}
WORDS = {"name": "print_pages", "description": "Print pages."}
PRINTER = Tool(
    "print_pages",
    "print_pages",
    "Print pages.",
    (Parameter("pages", "array[integer]", "", True), Parameter("ink", "string|null")),
    schema=json.dumps(SCHEMA, separators=(",", ":")),
)
SHAPES: dict[str, dict[str, Any]] = {
    "chat": {"type": "function", "function": {**WORDS, "parameters": SCHEMA, "strict": True}},
    "responses": {"type": "function", **WORDS, "parameters": SCHEMA},
    "legacy": {**WORDS, "parameters": SCHEMA},
    "anthropic": {**WORDS, "input_schema": SCHEMA},
    "anthropic typed": {"type": "custom", **WORDS, "input_schema": SCHEMA},
}


def write(folder: Path, value: object) -> Path:
    path = folder / "functions.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1), "utf-8")
    return path


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_shape_in_every_wrapping_gives_the_same_tool(tmp_path: Path, shape: dict[str, Any]) -> None:
    other = {"name": "stop", "parameters": None}
    lines = f"{json.dumps(shape)}\n\n{json.dumps(other)}\n"
    for value in ([shape, other], {"tools": [shape, other]}, {"functions": [shape, other]}, lines):
        assert read_catalogue(write(tmp_path, value)) == [PRINTER, Tool("stop", "stop")]
    assert read_catalogue(write(tmp_path, shape)) == [PRINTER]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "holds no tools"),
        ({"tools": 3}, "'tools' has to be a list, found a number"),
        ([{"type": "function", "function": {"description": "x"}}], "entry 1: 'name' is missing"),
        ([{"type": "function", "function": "x"}], "entry 1: 'function' has to be an object"),
        ([{"type": "web_search"}], "entry 1: a tool of type 'web_search' has no name; keep only functions"),
        ({"functions": [{"name": ""}]}, "functions[0]: 'name' is missing or blank"),
        ([{"name": "a", "parameters": "none"}], "entry 1: 'parameters' has to be an object, found text"),
        ([{"name": "a", "description": 1}], "entry 1: 'description' has to be text"),
        ([{"name": "a"}, {"name": "a "}], "entry 2: the id 'a' is already taken at"),
        ('{"name": "a"}\n{"name": }', "line 2: broken JSON"),
        ('{"name": "a"}\n3', "line 2: expected an object, found a number"),
        ("7", "expected an object, found a number"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, value: object, says: str) -> None:
    path = write(tmp_path, value)
    with pytest.raises(BadInput) as caught:
        read_catalogue(path, "functions")
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string|null"),
        ({"type": "string", "nullable": True}, "string|null"),
        ({"enum": ["a", "b"]}, "enum(a, b)"),
        ({"enum": [1, None, True]}, "enum(1, null, true)"),
        ({"enum": list("abcdefghij")}, "enum(a, b, c, d, e, f, g, h, …)"),
        ({"const": "x"}, "enum(x)"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "integer"}]}, "integer|number"),
        ({"oneOf": [{"enum": ["a"]}, {"type": "null"}]}, "enum(a)|null"),
        ({"allOf": [{"description": "x"}, {"type": "object"}]}, "object"),
        ({"type": "array", "items": {"type": "array", "items": {"enum": ["x"]}}}, "array[array[enum(x)]]"),
        ({"properties": {}}, "object"),
        ({"items": {"type": "string"}}, "array[string]"),
        ({"$ref": "#/$defs/a~1b%20c"}, "integer"),
        ({"$ref": "#/$defs/loop"}, ""),
        ({"$ref": "elsewhere.json"}, ""),
        ({"type": 5}, ""),
        ({}, ""),
        (True, ""),
    ],
)
def test_types_are_short_and_readable(schema: object, name: str) -> None:
    assert type_of(schema, {"$defs": {"a/b c": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}}) == name


def test_types_that_multiply_end() -> None:
    knot: dict[str, Any] = {"$defs": {"k": {"anyOf": [{"$ref": "#/$defs/k"}] * 50 + [{"enum": ["x" * 30] * 9}]}}}
    assert len(type_of({"$ref": "#/$defs/k"}, knot)) <= 200


def test_properties_come_through_references_and_compositions() -> None:
    schema = {
        "$ref": "#/$defs/Order",
        "$defs": {
            "Order": {"allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"size": {"type": "integer"}}}]},
            "Base": {
                "properties": {"id": {"required": True}, "up": {"$ref": "#"}},
                "anyOf": [{"$ref": "#/$defs/Order"}, {"properties": {"by": {}}, "required": ["by"]}],
            },
        },
    }
    found = {parameter.name: parameter.required for parameter in parameters_of(schema, "here")}
    assert found == {"by": False, "id": True, "up": False, "size": False}


def test_schemas_are_writable_json() -> None:
    text = compact({"a\ud800": [float("nan"), float("inf"), "é\udc00", 1.5]})
    assert text == '{"a?":[null,null,"é?",1.5]}'
    text.encode("utf-8")
