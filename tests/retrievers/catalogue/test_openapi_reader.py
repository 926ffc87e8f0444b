from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from retrievers.catalogue import read_catalogue
from retrievers.errors import BadInput
from retrievers.types import Parameter

GARDEN = """
openapi: 3.0.3
info: {title: "Garden Club (EU)", version: 2024-05-01}
paths:
  x-note: not a path
  /plots/{plot}:
    parameters:
      - $ref: '#/components/parameters/Plot'
      - {name: lang, in: query, schema: {type: string}, description: from the path}
    get:
      operationId: showPlot
      tags: [Plots, Public]
      summary: Show a plot
      description: What grows there, and since when.
      parameters:
        - {name: lang, in: query, description: Language, schema: {type: string, enum: [en, no, on]}}
        - {name: Authorization, in: header, schema: {type: string}}
        - {name: since, in: query, schema: {type: string, nullable: true, default: 2024-01-01}}
        - {name: box, in: query, content: {application/json: {schema: {type: object}}}}
    put:
      requestBody:
        required: true
        content:
          text/plain: {schema: {type: string}}
          application/json:
            schema: {$ref: '#/components/schemas/NewPlot'}
  /plots~1/import:
    post:
      requestBody:
        description: Many at once
        content:
          application/json: {schema: {type: array, items: {$ref: '#/components/schemas/Bed'}}}
components:
  parameters:
    Plot: {name: plot, in: path, required: true, description: Number of the plot, schema: {type: integer}}
  schemas:
    Bed:
      type: object
      properties:
        label: {type: string}
        inner: {$ref: '#/components/schemas/Bed'}
    NewPlot:
      allOf:
        - {$ref: '#/components/schemas/Owned'}
        - type: object
          required: [beds, id]
          properties:
            plot: {type: string}
            id: {type: string, readOnly: true}
            on: {type: boolean, description: Watered}
            beds: {type: array, items: {$ref: '#/components/schemas/Bed'}}
            example: {type: string, example: dropped}
    Owned:
      type: object
      required: [owner]
      properties:
        owner: {type: string, x-internal: 1}
"""


def write(folder: Path, document: object) -> Path:
    path = folder / "api.yaml"
    path.write_text(document if isinstance(document, str) else json.dumps(document), "utf-8")
    return path


def api(paths: Any, **more: Any) -> dict[str, Any]:
    return {"openapi": "3.1.0", "info": {"title": "Tiny", "version": "1"}, "paths": paths, **more}


def refusal(folder: Path, document: object) -> str:
    with pytest.raises(BadInput) as caught:
        read_catalogue(write(folder, document), "openapi")
    return str(caught.value)


def test_operations_become_tools(tmp_path: Path) -> None:
    show, update, many = read_catalogue(write(tmp_path, GARDEN))
    assert (show.id, show.name) == ("garden-club-eu/showPlot", "showPlot")
    assert (show.provider, show.category) == ("Garden Club (EU)", "Plots")
    assert show.description == "Show a plot\nWhat grows there, and since when."
    assert (update.id, update.name) == ("garden-club-eu/PUT /plots/{plot}", "PUT /plots/{plot}")
    assert many.id == "garden-club-eu/POST /plots~1/import"


def test_parameters_of_path_and_operation_are_joined(tmp_path: Path) -> None:
    show = read_catalogue(write(tmp_path, GARDEN))[0]
    assert show.parameters == (
        Parameter("plot", "integer", "Number of the plot", True),
        Parameter("lang", "enum(en, no, on)", "Language"),
        Parameter("since", "string|null"),
        Parameter("box", "object"),
    )
    schema = json.loads(show.schema)
    assert schema["required"] == ["plot"]
    assert schema["properties"]["since"]["default"] == "2024-01-01"


def test_the_fields_of_a_body_are_arguments(tmp_path: Path) -> None:
    _, update, many = read_catalogue(write(tmp_path, GARDEN))
    assert update.parameters == (
        Parameter("plot", "integer", "Number of the plot", True),
        Parameter("lang", "string", "from the path"),
        Parameter("owner", "string", "", True),
        Parameter("on", "boolean", "Watered"),
        Parameter("beds", "array[object]", "", True),
        Parameter("example", "string"),
    )
    assert many.parameters == (Parameter("body", "array[object]", "Many at once"),)


def test_schemas_stand_alone_and_recursion_ends(tmp_path: Path) -> None:
    _, update, many = read_catalogue(write(tmp_path, GARDEN))
    for tool in (update, many):
        assert "$ref" not in tool.schema
        assert "dropped" not in tool.schema
        assert "x-internal" not in tool.schema
    inner = json.loads(many.schema)["properties"]["body"]["items"]["properties"]["inner"]
    assert inner == {"type": "object", "description": "Bed, not spelled out again"}


def test_json_reads_like_yaml(tmp_path: Path) -> None:
    import yaml

    as_json = json.dumps(yaml.load(GARDEN, Loader=yaml.BaseLoader)).replace('"true"', "true")
    assert read_catalogue(write(tmp_path, as_json)) == read_catalogue(write(tmp_path, GARDEN))


def test_an_operation_without_arguments_has_an_empty_object(tmp_path: Path) -> None:
    tool = read_catalogue(write(tmp_path, api({"/now": {"get": {}}})))[0]
    assert (tool.schema, tool.parameters) == ('{"type":"object","properties":{}}', ())


def test_yaml_merge_keys_and_anchors(tmp_path: Path) -> None:
    tools = read_catalogue(
        write(
            tmp_path,
            "openapi: 3.1.0\ninfo: {title: T}\nx-base: &base {tags: [Shared], summary: base}\n"
            "paths:\n  /a: {get: &get {<<: *base, summary: mine}}\n  /b: {get: *get}\n",
        )
    )
    assert [(tool.category, tool.description) for tool in tools] == [("Shared", "mine")] * 2


def test_wide_trees_of_types_are_cut_at_a_depth_and_lose_no_argument(tmp_path: Path) -> None:
    schemas = {
        f"T{level}": {
            "type": "object",
            "properties": {f"p{n}": {"$ref": f"#/components/schemas/T{level + 1}"} for n in range(30)},
        }
        for level in range(12)
    } | {"T12": {"type": "string"}}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/T0"}}}}
    path = write(tmp_path, api({"/a": {"post": {"requestBody": body}}}, components={"schemas": schemas}))
    started = time.monotonic()
    tool = read_catalogue(path)[0]
    assert time.monotonic() - started < 60  # unrolled, it would take years
    assert len(tool.parameters) == 30
    assert len(tool.schema) < 25_000


def test_a_yaml_bomb_is_defused(tmp_path: Path) -> None:
    lines = ["openapi: 3.1.0", "info: {title: T}", "x0: &x0 {default: lol}"]
    lines += [f"x{n}: &x{n} [" + ", ".join([f"*x{n - 1}"] * 9) + "]" for n in range(1, 40)]
    lines += ["paths:", "  /a: {get: {parameters: [{name: p, in: query, schema: {default: *x39}}]}}"]
    started = time.monotonic()
    assert read_catalogue(write(tmp_path, "\n".join(lines)))[0].parameters == (Parameter("p"),)
    assert time.monotonic() - started < 60  # unrolled, it would take years


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "openapi: &a [*a]", "? [a]\n: b"])
def test_hostile_yaml_is_bad_input(tmp_path: Path, text: str) -> None:
    assert refusal(tmp_path, text)
    assert refusal(tmp_path, f"openapi: 3.0.0\nx:\n  {text}")


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("openapi: 3.0.0\ninfo: [", "line 2: invalid YAML"),
        ("openapi: 3.0.0\npaths:\n\t/a: 1", "line 3: invalid YAML, found character"),
        ("openapi: 3.0.0\na: b\x07c", "line 2: invalid YAML"),
        ("openapi: 3.0.0\n---\na: b", "line 2: a second YAML document"),
        ("openapi: 3.0.0\na: *b", "line 2: the anchor *b is not known"),
        ('{"openapi": "3.0.0",\n "info": }', "line 2: broken JSON"),
        ("swagger: '1.2'", "says Swagger '1.2'; give an OpenAPI 3.x or Swagger 2.0"),
        ({"openapi": "4.0.0"}, "says OpenAPI '4.0.0'"),
        ({"info": {}}, "has no 'openapi' version"),
        ([1], "expected an object, found a list"),
        ({"openapi": "3.0.0"}, "info: 'title' is missing"),
        (api({}), "holds no tools"),
        (api([]), "'paths' has to be an object, found a list"),
        (api({"/a": 3}), "/a: expected an object"),
        (api({"/a": {"get": "x"}}), "GET /a: expected an object, found text"),
        (api({"/a": {"get": {"tags": "x"}}}), "GET /a: 'tags' has to be a list"),
        (api({"/a": {"get": {"tags": [1]}}}), "GET /a: 'tags[0]' has to be text"),
        (api({"/a": {"get": {"operationId": 5}}}), "GET /a: 'operationId' has to be text, found a number"),
        (api({"/a": {"get": {"parameters": [{"in": "query"}]}}}), "GET /a, parameters[0]: 'name' is missing"),
        (api({"/a": {"$ref": "#/nowhere"}}), "/a: the $ref '#/nowhere' points at no object"),
        (api({"/a": {"$ref": "b.yaml#/x"}}), "/a: the $ref 'b.yaml#/x' is no file inside the folder"),
        (api({"/a": {"$ref": "#/paths/~1a"}}), "leads back to itself"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, document: object, says: str) -> None:
    message = refusal(tmp_path, document)
    assert says in message
    assert str(tmp_path / "api.yaml") in message
    assert "\n" not in message


def test_a_repeated_operation_id_is_replaced_by_method_and_path(tmp_path: Path) -> None:
    tools = read_catalogue(
        write(tmp_path, api({"/a": {"get": {"operationId": "x"}}, "/b": {"put": {"operationId": "x"}}}))
    )
    assert [(tool.id, tool.name) for tool in tools] == [("tiny/x", "x"), ("tiny/PUT /b", "x")]


def test_a_provider_replaces_the_title(tmp_path: Path) -> None:
    [tool] = read_catalogue(write(tmp_path, api({"/a": {"get": {}}})), provider="Tiny v2")
    assert (tool.id, tool.provider) == ("tiny-v2/GET /a", "Tiny v2")
