"""Arguments are checked in bounded time, and a mistake is one sentence that a model can act on."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from pipelines.serve.calls.arguments import check_arguments
from pipelines.serve.calls.outcomes import CallFailure
from pipelines.serve.catalogue.stdio_transport import LineSplitter, LongLine, Throttle
from retrievers.types import Tool

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z]"},
        "days": {"type": "integer", "maximum": 10},
        "unit": {"enum": ["C", "F"]},
        "at": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat", "lon"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
SPECIFICATION = "https://json-schema.org/draft/2020-12/schema"
GOOD = {"city": "Oslo", "days": 3}


def complaint(schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    try:
        check_arguments(Tool("t", "t", schema=json.dumps(schema)), arguments)
    except CallFailure as failure:
        return f"{failure.message}{'' if failure.outcome == 'arguments' else failure.outcome}"
    return ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (GOOD, ""),
        ({}, "missing: city, days; call get_tool for the schema"),
        ({**GOOD, "days": "3"}, "argument 'days' must be an integer, not a string"),
        ({**GOOD, "days": 30}, "argument 'days' must satisfy maximum 10"),
        ({**GOOD, "unit": "K"}, "argument 'unit' must be one of C, F"),
        ({**GOOD, "city": "oslo"}, "argument 'city' must match the pattern '^[A-Z]'"),
        ({**GOOD, "at": {"lat": 1}}, "missing in 'at': lon; call get_tool for the schema"),
        ({**GOOD, "town": 1}, "the arguments may not have town; allowed: city, days, unit, at"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    assert complaint(SCHEMA, arguments) == sentence


def test_schemas_that_attack_cost_no_time() -> None:
    def chain(number: int) -> dict[str, Any]:
        return {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2}

    bomb = {"type": "object", "$defs": {f"d{n}": chain(n) for n in range(40)} | {"d40": {}}}
    schemas: list[dict[str, Any]] = [
        {**bomb, "properties": {"x": {"$ref": "#/$defs/d0"}}},
        {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}},
        {"type": "object", "properties": {"x": {"$ref": "#"}}},
        {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/schema"}}},
        {"type": "object", "properties": {"x": {"type": "strng"}}},
        {"type": "object", "properties": {"x": {"type": "string", "pattern": "("}}},
        {"type": "object", "properties": {"x": {"allOf": [{"type": "integer"}] * 5_000}}},
        {"type": "object", "properties": {"x": {"anyOf": [{"type": "integer"}] * 5_000}}},
        {"type": "object", "patternProperties": {"^(x+)+!$": {}}, "additionalProperties": False},
        {"type": "object", "properties": {"x": {"$schema": SPECIFICATION, "pattern": "^(a+)+$"}}},
        {"type": "object", "properties": {"x": {"type": [*range(9_000), *(f"r{n}" for n in range(9_000))]}}},
    ]
    nested: dict[str, Any] = {}
    for _ in range(60):
        nested = {"allOf": [nested], "unevaluatedProperties": False}
    schemas.append({"type": "object", "properties": {"x": nested}})
    began = time.process_time()
    for schema in schemas:
        complaint(schema, {"x": "a" * 5_000 + "!"})
    complaint(schemas[8], {"x" * 40: 1})
    complaint(schemas[-1], {"x": {"y": 1}})
    complaint(schemas[6], {"x": "a" * 1_000_000})
    complaint(schemas[7], {"x": "a" * 1_000_000})
    slow = {"type": "array", "items": {"type": "string", "pattern": "^(a+)+$"}}
    complaint({"type": "object", "properties": {"x": slow}}, {"x": ["a" * 12 + "!"] * 20_000})
    assert time.process_time() - began < 20  # each of these takes minutes without a limit


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (float("nan"), "numbers must be finite; NaN and Infinity are no JSON"),
        (float("inf"), "numbers must be finite; NaN and Infinity are no JSON"),
        ("\ud800", "the arguments contain half a surrogate pair, which is no text"),
        (10**400, ""),
    ],
)
def test_values_that_json_cannot_express_are_refused(value: Any, sentence: str) -> None:
    assert complaint({"type": "object"}, {"x": [value]}) == sentence


def test_arguments_may_be_nested_but_not_without_end() -> None:
    nested: Any = 1
    for _ in range(5_000):
        nested = [nested]
    assert complaint({"type": "object"}, {"x": nested}) == "the arguments are nested too deeply"
    assert complaint({"type": "object"}, {"x": [[[[[[1]]]]]]}) == ""


def test_values_of_the_caller_are_not_repeated() -> None:
    assert "hush" not in complaint(SCHEMA, {**GOOD, "days": "hush"})
    assert len(complaint(SCHEMA, {**GOOD, "x" * 10_000: 1})) < 300


def test_a_line_that_is_too_long_still_names_its_request() -> None:
    python = b'{"jsonrpc":"2.0","id":7,"result":{"text":"' + b"x" * 50_000 + b'","id":3}}\n'
    typescript = b'{"result":{"id":9,"text":"' + b"x" * 50_000 + b'"},"jsonrpc":"2.0","id":"r-8"}\n'
    nameless = b"x" * 50_000 + b"\n"
    splitter, lines = LineSplitter(1_000), list[bytes | LongLine]()
    stream = b"short\n" + python + typescript + nameless + b"end\n"
    for start in range(0, len(stream), 777):
        lines += splitter.feed(stream[start : start + 777])
    assert (lines[0], lines[4]) == (b"short", b"end")
    long = [line for line in lines if isinstance(line, LongLine)]
    assert [line.request_id() for line in long] == [7, "r-8", None]


def test_a_flood_waits_at_its_own_pipe() -> None:
    now = [0.0]
    throttle = Throttle(100.0, clock=lambda: now[0])
    delays = [throttle.delay() for _ in range(300)]
    assert delays[:200] == [0.0] * 200
    assert delays[299] == pytest.approx(1.0)
    now[0] = 60.0
    assert throttle.delay() == 0.0
