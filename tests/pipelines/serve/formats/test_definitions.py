"""Search results as OpenAI functions, Anthropic tools and MCP tools: legal, valid, mapped back, counted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter
from scripted import check_tool
from serving import Running

from pipelines.legal_names import LegalNames
from pipelines.serve.formats.argument_schemas import _arguments, arguments_of, rename_properties
from pipelines.serve.formats.definitions import FORMATS, DefinitionBuilder
from retrievers.types import Parameter, Tool

Serve = Callable[..., Running]


def shapes() -> dict[str, Any]:
    """The clients' own types. Imported here: a process that runs other tests need not wait for them."""
    import mcp_types
    from anthropic.types import ToolParam
    from openai.types.chat import ChatCompletionFunctionToolParam
    from openai.types.responses import FunctionToolParam

    return {
        "openai": ChatCompletionFunctionToolParam,
        "openai-responses": FunctionToolParam,
        "anthropic": ToolParam,
        "anthropic-search": ToolParam,
        "mcp": mcp_types.Tool,
    }


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_what_its_client_takes(serve: Serve, format: str) -> None:
    from anthropic.types import ToolReferenceBlockParam

    server = serve()
    found = server.search("weather order", k=10, format=format)["results"][0]
    made = found["definitions"]
    assert len(made["tools"]) == len(found["tools"]) == 10
    assert list(made["names"].values()) == [tool["id"] for tool in found["tools"]]
    for name, tool in zip(made["names"], made["tools"], strict=True):
        TypeAdapter(shapes()[format]).validate_python(tool)
        inner = tool.get("function", tool)
        assert inner["name"] == name
        schema = inner.get("parameters") or inner.get("input_schema") or inner.get("inputSchema")
        check_tool(name.replace(".", "_"), schema, 64 if format.startswith("openai") else 128)
    if format == "anthropic-search":
        TypeAdapter(list[ToolReferenceBlockParam]).validate_python(made["references"])
        assert [each["tool_name"] for each in made["references"]] == list(made["names"])
        assert all(tool["defer_loading"] for tool in made["tools"])
    else:
        assert made["references"] is None
    tokens = made["tokens"]
    assert tokens["saved"] == tokens["catalogue"] - tokens["sent"]
    assert 0 < tokens["sent"] < tokens["catalogue"] / 3
    assert server.search("weather order")["results"][0]["definitions"] is None


def test_strange_names_and_arguments_lead_back(serve: Serve) -> None:
    server = serve()
    schema = {
        "properties": {"Stadt / Ort": {"type": "str"}, "$filter": {"type": "string"}},
        "required": ["Stadt / Ort"],
    }
    body = {"name": "Wetter für morgen!", "description": "umbrella\u200b advice", "schema": schema}
    for tool in ("a", "b"):
        server.client.put(f"/v1/tools/{tool}", json=body)
    [result] = server.search("umbrella advice", k=2, format="openai")["results"]
    made = result["definitions"]
    assert sorted(made["names"].values()) == ["a", "b"]
    for name, tool in zip(made["names"], made["tools"], strict=True):
        function = tool["function"]
        assert re.fullmatch(r"Wetter_fur_morgen_[0-9a-f]{8}", name)
        assert function["description"] == "umbrella advice"
        back = made["arguments"][name]
        assert {back.get(key, key) for key in function["parameters"]["properties"]} == {"Stadt / Ort", "$filter"}
        assert [back[key] for key in function["parameters"]["required"]] == ["Stadt / Ort"]


def test_nobody_takes_anothers_name() -> None:
    twins = [("1", "pay"), ("2", "pay"), ("3", "transfer")]
    names = LegalNames(twins, "", 64)
    taken = names.of("1", "pay")
    thief = LegalNames([*twins, ("4", taken)], "", 64)
    every = [thief.of(tool, name) for tool, name in [*twins, ("4", taken)]]
    assert len(set(every)) == 4
    assert thief.of("1", "pay") == taken
    assert every[2] == "transfer"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=90), max_size=8), st.sampled_from([("", 64), ("", 128), (".", 128)]))
def test_names_are_legal_and_different(names: list[str], rule: tuple[str, int]) -> None:
    tools = [(str(place), name) for place, name in enumerate(names)]
    legal = LegalNames(tools, *rule)
    made = [legal.of(tool, name) for tool, name in tools]
    assert len(set(made)) == len(made)
    for name in made:
        assert re.fullmatch(rf"[A-Za-z0-9_{rule[0]}-]{{1,{rule[1]}}}", name)


WORDS = (
    "type properties required items $ref anyOf oneOf enum description default $defs additionalProperties a b".split()
)
keys = st.sampled_from(WORDS) | st.text(max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([*WORDS, "#/$defs/a", "str", "object"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(json_values)
def test_whatever_a_catalogue_calls_a_schema_becomes_one(value: object) -> None:
    tool = Tool("1", "t", parameters=(Parameter("city", "STRING", "where", True),), schema=json.dumps(value))
    schema, back = rename_properties(arguments_of(tool))
    check_tool("t", schema, 64)
    assert len(back) == len(set(back.values()))
    Draft202012Validator(schema).is_valid({})  # no reference leads nowhere
    for format in FORMATS:
        tokens = DefinitionBuilder({"1": tool}, [("1", "t")], format).build(["1"]).tokens
        assert tokens.catalogue > 0


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"type": "dict", "properties": {"a": {"type": "float"}}}, {"a": {"type": "number"}}),
        ({"properties": {"a": {"type": "integer", "required": True}}}, {"a": {"type": "integer"}}),
        ({"properties": {"a": {"$ref": "#/$defs/no"}}}, {"a": {}}),
        ({"properties": {"a": {"$ref": "https://elsewhere/x"}}}, {"a": {}}),
        (
            {"anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {}}}]},
            {"a": {"type": "string"}, "b": {}},
        ),
        ([], {"city": {"type": "string", "description": "where"}}),
    ],
)
def test_common_mistakes_are_put_right(given: object, made: dict[str, Any]) -> None:
    tool = Tool("1", "t", parameters=(Parameter("city", "STRING", "where", True),), schema=json.dumps(given))
    assert arguments_of(tool)["properties"] == made


def test_the_first_definitions_wait_for_no_other_tool() -> None:
    """The size of the catalogue is estimated without checking its schemas, and is exact for good ones."""
    schemas = [json.dumps({"type": "object", "properties": {f"slow{n}": {"type": "string"}}}) for n in range(300)]
    tools = {str(n): Tool(str(n), f"tool{n}", "Does it.", schema=schema) for n, schema in enumerate(schemas)}
    before = _arguments.cache_info().misses
    made = DefinitionBuilder(tools, [(tool.id, tool.name) for tool in tools.values()], "openai")
    first = made.build(["7", "8"])
    assert _arguments.cache_info().misses - before == 2
    whole = made.build(list(tools)).tokens
    assert first.tokens.catalogue == whole.catalogue == whole.sent


def test_a_good_schema_stays_as_it_is() -> None:
    good = {
        "type": "object",
        "$defs": {"City": {"type": "string", "minLength": 2}},
        "properties": {"city": {"$ref": "#/$defs/City"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    assert arguments_of(Tool("1", "t", schema=json.dumps(good))) == good


def test_a_schema_that_is_too_deep_gives_way_to_the_parameters() -> None:
    deep = '{"properties":{"a":' * 5000 + "{}" + "}}" * 5000
    made = arguments_of(Tool("1", "t", parameters=(Parameter("city", "str", required=True),), schema=deep))
    assert made == {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
