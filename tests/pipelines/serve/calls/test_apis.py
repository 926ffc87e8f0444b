"""Tools of OpenAPI documents are called over HTTP: their own host only, with the operator's credentials."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from serving import Running

from pipelines.serve.calls.api_request import add_credentials, build_request
from pipelines.serve.calls.outcomes import CallFailure
from retrievers.catalogue import read_catalogue

Serve = Callable[..., Running]
KEY = "sesame-4711"


def parameter(name: str, goes: str, kind: str = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "in": goes, "schema": {"type": kind}, "required": goes == "path", **more}


BODY = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]}
DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Pets", "version": "1"},
    "servers": [{"url": "/v1"}],
    "security": [{"key": []}],
    "components": {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}},
    "paths": {
        "/pets/{id}": {
            "get": {"operationId": "getPet", "parameters": [
                parameter("id", "path"), parameter("tags", "query", "array"), parameter("X-Trace", "header")]},
            "delete": {"operationId": "deletePet", "parameters": [parameter("id", "path")]},
        },
        "/pets": {"post": {"operationId": "addPet", "requestBody": {
            "required": True, "content": {"application/json": {"schema": BODY}}}}},
        "/redirect": {"get": {"operationId": "redirect"}},
        "/large": {"get": {"operationId": "large"}},
        "/echo-key": {"get": {"operationId": "echoKey"}},
        "/missing": {"get": {"operationId": "missing"}},
        "/elsewhere": {"get": {"operationId": "elsewhere", "servers": [{"url": "https://evil.example/v1"}]}},
    },
}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    seen: list[dict[str, Any]]
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self.seen.append({"method": self.command, "path": self.path, "headers": dict(self.headers), "body": body})
        status, data = 200, json.dumps({"path": self.path, "body": body})
        if "redirect" in self.path:
            status = 302
        elif "large" in self.path:
            data = json.dumps("x" * 3_000_000)
        elif "echo-key" in self.path:
            data = json.dumps({"key": self.headers["X-Key"]})
        elif "missing" in self.path:
            status, data = 404, json.dumps({"error": "no such pet"})
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Location", "https://evil.example/")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data.encode())

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def pet_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    seen: list[dict[str, Any]] = []
    handler = type("PetHandler", (Handler,), {"seen": seen})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def put_pets(server: Running, tmp_path: Path) -> None:
    (tmp_path / "pets.json").write_text(json.dumps(DOCUMENT))
    for tool in read_catalogue(tmp_path / "pets.json"):
        body = {"name": tool.name, "description": tool.description, "provider": tool.provider,
                "schema": json.loads(tool.schema), "call": json.loads(tool.call)}  # fmt: skip
        assert server.client.put(f"/v1/tools/{tool.id}", json=body).status_code == 200


def test_operations_are_called_as_the_document_says(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PETS_KEY", KEY)
    rules = {"allow_private": True, "bytes": 1_000_000}
    with pet_server() as (url, seen):
        server = serve(
            apis=[{"provider": "Pets", "url": url, "key_variable": "PETS_KEY"}],
            imports=rules,
            anonymous=["search", "write", "call"],
            access={"destructive": ["pets/deletePet"]},
        )
        put_pets(server, tmp_path)

        def call(tool: str, **arguments: Any) -> tuple[int, dict[str, Any]]:
            response = server.post("/v1/call", tool=f"pets/{tool}", arguments=arguments)
            return response.status_code, response.json()

        status, answer = call("getPet", id="a/../b?x", tags=["red", "big"], **{"X-Trace": "7"})
        assert (status, answer["structured"]["path"]) == (200, "/v1/pets/a%2F..%2Fb%3Fx?tags=red&tags=big")
        assert (seen[-1]["headers"]["X-Key"], seen[-1]["headers"]["X-Trace"]) == (KEY, "7")
        assert call("addPet", name="Rex", age=3)[0] == 200
        assert (seen[-1]["method"], json.loads(seen[-1]["body"])) == ("POST", {"name": "Rex", "age": 3})
        assert call("deletePet", id="1")[0] == 200
        assert call("echoKey")[1]["structured"] == {"key": "[redacted]"}
        status, answer = call("missing")
        assert (status, answer["is_error"], answer["content"][0]["text"]) == (
            200,
            True,
            'HTTP 404: {"error": "no such pet"}',
        )
        count = len(seen)
        for tool, arguments, code in (
            ("getPet", {"id": ".."}, "arguments"),
            ("getPet", {"id": "1", "X-Trace": "a\r\nHost: b"}, "arguments"),
            ("getPet", {"id": "1", "colour": "red"}, "arguments"),
            ("addPet", {"age": 3}, "arguments"),
            ("elsewhere", {}, "not_callable"),
        ):
            assert call(tool, **arguments)[1]["error"]["code"] == code, tool
        assert len(seen) == count
        assert call("redirect")[1]["error"]["code"] == "upstream_error"
        assert call("large")[1]["error"]["code"] == "too_large"
        assert [server_state["calls"]["ok"] for server_state in server.client.get("/v1/upstreams").json()["upstreams"]]
        assert 'toolrewrite_calls_total{outcome="ok",upstream="Pets"}' in server.client.get("/metrics").text
    assert call("getPet", id="1")[0] == 503
    assert KEY not in caplog.text


def test_without_permission_for_private_addresses_nothing_is_sent(serve: Serve, tmp_path: Path) -> None:
    with pet_server() as (url, seen):
        server = serve(apis=[{"provider": "Pets", "url": url}], anonymous=["search", "write", "call"])
        put_pets(server, tmp_path)
        response = server.post("/v1/call", tool="pets/missing")
        assert (response.status_code, seen) == (503, [])
        assert "credentials" in server.post("/v1/call", tool="pets/missing").json()["error"]["message"]


@pytest.mark.parametrize(
    ("scheme", "header", "query"),
    [
        ({"type": "http", "scheme": "bearer"}, {"Authorization": "Bearer k"}, []),
        ({"type": "http", "scheme": "basic"}, {"Authorization": "Basic aw=="}, []),
        ({"type": "apiKey", "in": "query", "name": "token"}, {}, [("token", "k")]),
        ({"type": "oauth2"}, {"Authorization": "Bearer k"}, []),
    ],
)
def test_credentials_go_where_the_document_wants_them(
    scheme: dict[str, str], header: dict[str, str], query: list[tuple[str, str]]
) -> None:
    request = build_request({"method": "GET", "path": "/x"}, {})
    add_credentials(request, [{"one": scheme}], "k", "Pets")
    assert (request.headers, request.query) == (header, query)


def test_credentials_are_not_sent_where_none_are_wanted() -> None:
    request = build_request({"method": "GET", "path": "/x"}, {})
    add_credentials(request, [], "k", "Pets")
    assert request.headers == {}
    with pytest.raises(CallFailure, match="several"):
        add_credentials(request, [{"a": {"type": "oauth2"}, "b": {"type": "oauth2"}}], "k", "Pets")
