"""Documents in several files, Swagger 2.0, and the stored calls."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retrievers.catalogue import read_catalogue
from retrievers.catalogue.collection import read_catalogues
from retrievers.errors import BadInput
from retrievers.index import tools as tool_lines
from retrievers.text import document
from retrievers.types import Parameter, Tool

SHOP = """
swagger: "2.0"
info: {title: Shop, version: 1.2.0}
host: shop.example
basePath: /api/
schemes: [http, https]
consumes: [application/xml, application/json]
securityDefinitions:
  key: {type: apiKey, in: header, name: X-Key}
  login: {type: oauth2, flow: implicit, authorizationUrl: "https://shop.example/login", scopes: {write: all}}
security: [{key: []}]
parameters:
  Item: {name: item, in: path, required: true, type: integer, description: Number of the item}
definitions:
  Order:
    type: object
    required: [count]
    properties: {count: {type: integer}, gift: {$ref: "#/definitions/Gift"}}
  Gift: {type: object, properties: {note: {type: string}, inner: {$ref: "#/definitions/Gift"}}}
paths:
  /items/{item}:
    parameters: [{$ref: "#/parameters/Item"}]
    get:
      operationId: show
      parameters: [{name: tags, in: query, type: array, items: {type: string}, collectionFormat: csv}]
    post:
      operationId: order
      security: [{login: [write]}, {}]
      parameters: [{name: order, in: body, required: true, schema: {$ref: "#/definitions/Order"}}]
  /photos:
    post:
      operationId: upload
      parameters:
        - {name: photo, in: formData, type: file, required: true}
        - {name: title, in: formData, type: string, description: Shown below}
"""


def read(folder: Path, **files: str) -> list[Tool]:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return read_catalogue(folder / f"{next(iter(files)).replace('__', '/')}.yaml")


def test_swagger_reads_like_openapi(tmp_path: Path) -> None:
    show, order, upload = read(tmp_path, shop=SHOP)
    item = Parameter("item", "integer", "Number of the item", True)
    assert show.parameters == (item, Parameter("tags", "array[string]"))
    assert order.parameters == (item, Parameter("count", "integer", "", True), Parameter("gift", "object"))
    assert upload.parameters == (Parameter("photo", "string", "", True), Parameter("title", "string", "Shown below"))
    assert [tool.id for tool in (show, order, upload)] == ["shop/show", "shop/order", "shop/upload"]
    assert "$ref" not in order.schema


def test_the_call_of_a_swagger_operation(tmp_path: Path) -> None:
    show, order, upload = (json.loads(tool.call) for tool in read(tmp_path, shop=SHOP))
    assert show == {
        "method": "GET",
        "server": "https://shop.example/api",
        "path": "/items/{item}",
        "version": "1.2.0",
        "parameters": [{"name": "item", "in": "path"}, {"name": "tags", "in": "query", "collectionFormat": "csv"}],
        "security": [{"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}],
    }
    assert order["body"] == {"media_type": "application/json"}
    assert order["parameters"][1:] == [{"name": "count", "in": "body"}, {"name": "gift", "in": "body"}]
    assert order["security"][0]["login"]["scopes"] == ["write"]
    assert order["security"][1] == {}
    assert upload["body"] == {"media_type": "multipart/form-data"}


def test_the_call_of_an_operation(tmp_path: Path) -> None:
    [tool] = read(
        tmp_path,
        a="""
openapi: 3.1.0
info: {title: A}
servers: [{url: "https://{zone}.example/v1/", variables: {zone: {default: eu}}}]
paths:
  /a/{id}:
    put:
      parameters:
        - {name: id, in: path, required: true, schema: {type: string}}
        - {name: X-Trace, in: header, schema: {type: string}}
        - {name: near, in: query, style: deepObject, explode: true, schema: {type: object}}
      requestBody: {content: {application/json: {schema: {type: array, items: {type: string}}}}}
""",
    )
    assert json.loads(tool.call) == {
        "method": "PUT",
        "server": "https://eu.example/v1",
        "path": "/a/{id}",
        "parameters": [
            {"name": "id", "in": "path"},
            {"name": "X-Trace", "in": "header"},
            {"name": "near", "in": "query", "style": "deepObject", "explode": True},
            {"name": "body", "in": "body"},
        ],
        "body": {"media_type": "application/json", "whole": True},
    }
    assert "eu.example" not in document(tool)


def test_an_index_keeps_the_call_and_reads_lines_without_one(tmp_path: Path) -> None:
    tool = read(tmp_path, shop=SHOP)[0]
    assert tool_lines.decode(tool_lines.encode([tool])) == tool
    old = replace(tool, call="")
    assert b'"call"' not in tool_lines.encode([old])
    assert tool_lines.decode(tool_lines.encode([old])) == old


ROOT = """
openapi: 3.0.0
info: {title: Split}
paths:
  /a: {$ref: "paths/a.yaml"}
"""
PATH = """
post:
  operationId: make
  requestBody: {content: {application/json: {schema: {$ref: "../schemas.yaml#/Thing"}}}}
"""
SCHEMAS = """
Thing: {type: object, properties: {size: {$ref: "#/Size"}, inner: {$ref: "#/Thing"}, top: {$ref: "root.yaml#/info"}}}
Size: {type: integer, description: In metres}
"""


def test_a_document_in_several_files(tmp_path: Path) -> None:
    [tool] = read(tmp_path, root=ROOT, paths__a=PATH, schemas=SCHEMAS)
    assert tool.parameters[:2] == (Parameter("size", "integer", "In metres"), Parameter("inner", "object"))
    assert "$ref" not in tool.schema
    reports: list[str] = []
    assert read_catalogues([str(tmp_path)], report=reports.append) == [tool]
    assert reports == []  # its parts are no catalogues, and need no report


@pytest.mark.parametrize(
    "reference",
    ["../out.yaml", "/etc/hostname", "https://a.example/b.yaml", "link.yaml", "%2e%2e/out.yaml", "a\0b", "."],
)
def test_references_do_not_leave_the_folder(tmp_path: Path, reference: str) -> None:
    (tmp_path / "out.yaml").write_text("get: {}", "utf-8")
    inner = tmp_path / "in"
    inner.mkdir()
    (inner / "link.yaml").symlink_to(tmp_path / "out.yaml")
    text = json.dumps({"openapi": "3.0.0", "info": {"title": "A"}, "paths": {"/a": {"$ref": reference}}})
    with pytest.raises(BadInput, match=r"is no file inside the folder|is on the network"):
        read(inner, root=text)


def test_a_given_folder_is_the_limit_of_its_files(tmp_path: Path) -> None:
    root, path = ROOT.replace("paths/a", "../common"), PATH.replace("../", "")
    with pytest.raises(BadInput, match="give the folder that holds all files"):
        read(tmp_path, api__root=root, common=path, schemas=SCHEMAS.replace("root", "api/root"))
    assert [tool.id for tool in read_catalogues([str(tmp_path)])] == ["split/make"]
    assert [tool.id for tool in read_catalogues([f"{tmp_path}/*/*.yaml"])] == ["split/make"]


def test_a_large_document_is_read_in_seconds(tmp_path: Path) -> None:
    size: dict[str, Any] = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20)}}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/T"}}}}
    text = "<p>Some <b>bold</b> words about the operation, with a [link](https://a.example).</p> " * 8
    paths = {f"/a{n}": {"post": {"description": f"{n} {text}", "requestBody": body}} for n in range(1000)}
    whole = {"openapi": "3.0.0", "info": {"title": "A"}, "paths": paths, "components": {"schemas": {"T": size}}}
    started = time.monotonic()
    assert len(read(tmp_path, a=json.dumps(whole))) == 1000
    assert time.monotonic() - started < 60  # about one second on a free machine
