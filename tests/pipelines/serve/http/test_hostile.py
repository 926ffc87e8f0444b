"""Hostile requests get a sentence and nothing else, and leave the server as it was."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from doubles import BM25_ONLY, ModelServer, plain_context, varied_tools
from hostile import CASES, GROUPS, Case, table
from paths import ROOT
from serving import Running, rewriter, running
from waiting import PATIENCE

from pipelines.serve.keys import digest, make_key
from retrievers.index import build, verify

DOCS = ROOT / "docs" / "security.md"
KEYS = {scope: make_key()[0] for scope in ("search", "write", "admin")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hostile")
    build(made / "index", varied_tools(40), BM25_ONLY, plain_context())
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    model = ModelServer()
    keys = [{"name": scope, "sha256": digest(key), "scopes": [scope]} for scope, key in KEYS.items()]
    config: dict[str, Any] = {
        "index": str(folder / "index"),
        "retriever": "bm25",
        "anonymous": [],
        "keys": keys,
        "admin": True,
        "imports": {"hosts": ["localhost"]},
        "rewriter": rewriter(model),
        "feedback": str(folder / "feedback"),
    }
    with running(config) as made:
        made.until_ready()
        yield made
    model.stop()


def sent(server: Running, case: Case) -> tuple[int, dict[str, str], bytes]:
    if case.raw is not None:
        return by_socket(server.port, case.raw.replace(b"SEARCH-KEY", KEYS["search"].encode()))
    headers = {"Content-Type": "application/json", **case.headers}
    if case.key is not None:
        headers["Authorization"] = f"Bearer {digest(KEYS['search']) if case.key == 'hash' else KEYS[case.key]}"
    request = httpx.Request(case.method, server.url + case.path, content=case.body, headers=headers)
    got = server.client.send(request)
    return got.status_code, dict(got.headers), got.content


def by_socket(port: int, data: bytes) -> tuple[int, dict[str, str], bytes]:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(data)
        found = b""
        while b"\r\n\r\n" not in found and (some := connection.recv(65536)):
            found += some
    return int(found.split()[1]), {}, b""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hostile_request_gets_what_it_deserves(server: Running, folder: Path, case: Case) -> None:
    status, headers, body = sent(server, case)
    assert status == case.status, body[:300]
    if case.raw is None and status != 200:
        error = json.loads(body)["error"]
        assert set(error) == {"code", "message"}
        assert "\n" not in error["message"]
        assert len(body) < 600  # what was sent is not sent back
        for secret in (str(folder), "Traceback", "site-packages", *KEYS.values()):
            assert secret not in body.decode()
    if case.raw is None:
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
    assert server.client.get("/healthz").status_code == 200


def test_there_are_enough_of_them_and_no_two_alike() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 40
    assert all(GROUPS.values())


def test_the_docs_have_the_table() -> None:
    assert table() in DOCS.read_text(encoding="utf-8"), f"put this into {DOCS.name}:\n{table()}"


def test_the_docs_have_their_number() -> None:
    assert f"each of these {len(CASES)} requests" in DOCS.read_text(encoding="utf-8")


def test_the_index_is_whole_after_all_of_it(server: Running, folder: Path) -> None:
    assert verify(folder / "index") == []
    got = server.client.post(
        "/v1/search", json={"utterance": "weather"}, headers={"Authorization": f"Bearer {KEYS['search']}"}
    )
    assert got.json()["results"][0]["tools"]


def test_a_body_that_never_ends_or_comes_too_slowly_is_let_go(folder: Path) -> None:
    config = {"index": str(folder / "index"), "retriever": "bm25"}
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with running({**config, "limits": {"bytes": 4096}}) as server:
        chunks = b"".join(b"400\r\n" + b"a" * 1024 + b"\r\n" for _ in range(20))
        assert by_socket(server.port, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)[0] == 413
    with running({**config, "limits": {"body_seconds": 0.3}}) as server:
        assert by_socket(server.port, head + b"Content-Length: 100\r\n\r\n{")[0] == 408


def test_those_without_a_key_take_no_place_from_those_with_one(folder: Path) -> None:
    key, hashed = make_key()
    config = {
        "index": str(folder / "index"),
        "retriever": "bm25",
        "anonymous": [],
        "keys": [{"name": "one", "sha256": hashed}],
        "limits": {"in_flight": 16, "body_seconds": 60.0},
    }
    with running(config) as server, ExitStack() as stack:
        for path in ("/healthz", "/readyz", "/", "/report", "/page/page.js", "/v1/search"):
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            for _ in range(20):
                waits = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
                waits.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        headers = {"Authorization": f"Bearer {key}"}
        for _ in range(20):
            got = server.client.post("/v1/search", json={"utterance": "weather"}, headers=headers)
            assert got.status_code == 200, got.text
        assert "toolrewrite_in_flight 1.0" in server.client.get("/metrics", headers=headers).text


def test_an_import_that_is_allowed_follows_no_redirect_and_no_size(folder: Path) -> None:
    fetched = {"name": "fetched", "description": "Fetched from elsewhere.", "parameters": {}}
    tools = json.dumps([fetched, {"nam": "no name"}]).encode()
    replies: dict[str, tuple[int, bytes]] = {"/ok": (200, tools), "/moved": (302, b""), "/huge": (200, b" " * 5000)}
    source = ModelServer()
    source.reply = lambda handler, body: replies.get(handler.path, (404, b""))  # type: ignore[method-assign]
    config = {
        "index": str(folder / "index"),
        "retriever": "bm25",
        "admin": True,
        "anonymous": ["search", "admin"],
        "imports": {"hosts": ["localhost"], "allow_private": True, "bytes": 4000},
    }
    port = source.server_address[1]
    with running(config) as server:
        for path in ("/moved", "/huge", "/nowhere"):
            got = server.post("/v1/admin/import", url=f"http://localhost:{port}{path}")
            assert (got.status_code, got.json()["error"]["code"]) == (422, "import_failed")
        answer = server.post("/v1/admin/import", url=f"http://localhost:{port}/ok").json()
        assert answer["added"] == 1
        assert answer["skipped"] == ["the catalogue, entry 2: 'name' is missing or blank; give every entry one"]
        assert server.search("fetched from elsewhere", k=1)["results"][0]["tools"][0]["name"] == "fetched"
    source.stop()
