"""Routes of the page: open files, strict policies, and no part of a request becomes a path."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from serving import Running

from pipelines.config import ConfigError, parse
from pipelines.serve.page.assets import FOLDER
from pipelines.serve.page.routes import ASSETS
from pipelines.serve.settings import ServeConfig

Serve = Callable[..., Running]
KEYS = [{"name": "reader", "sha256": "0" * 64}]
MCP = {"tools": [{"name": "tides", "description": "High water", "inputSchema": {"type": "object", "properties": {}}}]}


def test_the_page_needs_no_key_and_its_files_are_kept_by_their_hash(serve: Serve) -> None:
    client = serve(anonymous=[], keys=KEYS).client
    for path in ("/", "/report"):
        got = client.get(path)
        assert got.status_code == 200
        assert got.headers["content-type"] == "text/html; charset=utf-8"
        assert got.headers["cache-control"] == "no-cache"
        assert got.headers["x-content-type-options"] == "nosniff"
        assert client.get(path, headers={"If-None-Match": got.headers["etag"]}).status_code == 304
        for asset in set(re.findall(r'(?:src|href)="(/page/[^"]+)"', got.text)):
            found = client.get(asset)
            assert found.status_code == 200
            assert "immutable" in found.headers["cache-control"]
            assert found.headers.get_list("content-security-policy") == ["default-src 'none'; frame-ancestors 'none'"]
    assert client.get("/v1/about").status_code == 401
    assert client.get("/v1/reports").status_code == 401


def test_the_policies_let_nothing_in(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<title>t</title>")
    client = serve(reports={"one": str(tmp_path)}).client
    [page] = client.get("/").headers.get_list("content-security-policy")
    assert "unsafe" not in page
    for part in ("default-src 'none'", "script-src 'self';", "base-uri 'none'", "frame-ancestors 'none'"):
        assert part in page
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in page
    [report] = client.get("/v1/reports/one").headers.get_list("content-security-policy")
    assert "sandbox allow-scripts" in report
    assert "allow-same-origin" not in report
    assert re.search(r"script-src 'sha256-[^']+';", report)
    assert "connect-src" not in report
    assert client.get("/v1/tools").headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"


def test_the_files_hold_no_inline_script_and_import_what_is_there() -> None:
    for path in FOLDER.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<script(?![^>]*\bsrc=)", text)
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|https?://", text)
    for path in FOLDER.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|https?://(?!www\.w3)", text
        )
        for name in re.findall(r'from "\./([^"]+)"', text):
            assert (FOLDER / name).is_file()
    preloaded = set(re.findall(r"VERSION/(\w+\.js)", (FOLDER / "index.html").read_text()))
    assert {path.name for path in FOLDER.glob("*.js")} - preloaded == {"report.js"}


@pytest.mark.parametrize(
    "path",
    [
        "/page/0000000000000000/app.js",
        f"/page/{ASSETS.version}/index.html",
        f"/page/{ASSETS.version}/nothing.js",
        f"/page/{ASSETS.version}/..%2f..%2fassets.py",
        f"/page/{ASSETS.version}/%2e%2e/routes.py",
        "/page/",
        "/index.html",
        "/v1/reports/..%2f..%2fetc%2fpasswd",
        "/v1/reports/%2e%2e",
        "/v1/reports/two",
    ],
)
def test_nothing_in_an_address_is_a_path(serve: Serve, tmp_path: Path, path: str) -> None:
    got = serve(reports={"one": str(tmp_path)}).client.get(path)
    assert (got.status_code, got.json()["error"]["code"]) == (404, "not_found")


def test_a_server_without_a_page_has_none(serve: Serve) -> None:
    client = serve(page=False).client
    assert [client.get(path).status_code for path in ("/", "/report", "/v1/about", "/v1/reports")] == [404] * 4


def test_about_tells_what_the_caller_may_do(serve: Serve) -> None:
    found = serve(anonymous=["search"], limits={"tools": 7}).client.get("/v1/about").json()
    assert (found["caller"], found["scopes"], found["tools"], found["limits"]["tools"]) == (
        "anonymous",
        ["search"],
        60,
        7,
    )
    assert [model["role"] for model in found["models"]] == ["retriever"]
    assert found["asks"] is False


def test_labels_and_parts_of_names(serve: Serve) -> None:
    server = serve()
    tools = server.client.get("/v1/tools", params={"limit": 200}).json()["tools"]
    labels = server.client.get("/v1/labels").json()
    for kind, key in (("providers", "provider"), ("categories", "category")):
        assert {each["label"]: each["tools"] for each in labels[kind]} == {
            label: sum(tool[key] == label for tool in tools) for label in {tool[key] for tool in tools}
        }
    part = "WeAtHeR"
    page = server.client.get("/v1/tools", params={"limit": 200, "contains": part}).json()
    wanted = [tool["id"] for tool in tools if part.lower() in f"{tool['id']} {tool['name']}".lower()]
    assert [tool["id"] for tool in page["tools"]] == wanted
    assert page["total"] == len(wanted) > 0
    server.client.put("/v1/tools/brand-new", json={"name": "brand-new", "provider": "somebody new"})
    assert "somebody new" in {each["label"] for each in server.client.get("/v1/labels").json()["providers"]}


def test_a_document_is_read_and_what_it_holds_can_be_put(serve: Serve) -> None:
    server = serve()
    text = json.dumps(MCP)
    [tool] = server.post("/v1/catalogue/read", document=text).json()["tools"]
    assert tool.pop("state") == "new"
    assert server.client.get(f"/v1/tools/{tool['id']}").status_code == 404  # reading changes nothing
    assert server.client.put("/v1/tools", json={"tools": [tool]}).json()["added"] == 1
    assert server.post("/v1/catalogue/read", document=text).json()["tools"][0]["state"] == "same"
    other = text.replace("High", "Low")
    assert server.post("/v1/catalogue/read", document=other, format="mcp").json()["tools"][0]["state"] == "changed"
    [named] = server.post("/v1/catalogue/read", document=text, provider=" Harbour ").json()["tools"]
    assert (named["id"], named["provider"], named["state"]) == ("Harbour/tides", "Harbour", "new")
    whose = json.dumps({"serverInfo": {"name": "Pier"}, **MCP})
    assert (
        server.post("/v1/catalogue/read", document=whose, provider="Harbour").json()["tools"][0]["id"] == "Pier/tides"
    )
    table = "name,description\nberths,Where to moor\n,Nameless\n"
    answer = server.post("/v1/catalogue/read", document=table, format="csv").json()
    assert [tool["name"] for tool in answer["tools"]] == ["berths"]
    assert answer["skipped"] == ["the catalogue, line 3: 'name' is missing or blank; give every entry one"]


BOMB = "openapi: 3.0.0\na: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "document",
    [
        "{",
        "[]",
        "hello",
        "\ud800",
        "[" * 100_000,
        '{"tools": [{"name": 3}]}',
        BOMB,
        "/etc/passwd",
        "file:///etc/passwd",
    ],
    ids=lambda text: text[:12].encode("ascii", "replace").decode(),
)
def test_a_document_that_is_none_gets_a_sentence(serve: Serve, tmp_path: Path, document: str) -> None:
    body = json.dumps({"document": document})
    got = serve().client.post("/v1/catalogue/read", content=body, headers={"Content-Type": "application/json"})
    assert got.status_code == 422
    message = got.json()["error"]["message"]
    assert "\n" not in message
    for leak in ("/tmp", str(tmp_path), "Traceback", "root:"):
        assert leak not in message


def test_reading_and_reports_need_their_scopes(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<title>A &amp; B</title><h1>x <b>finds</b> 61 %</h1>")
    server = serve(anonymous=["search"], reports={"one": str(tmp_path), "not-yet": str(tmp_path / "later")})
    assert server.post("/v1/catalogue/read", document=json.dumps(MCP)).status_code == 403
    one, later = server.client.get("/v1/reports").json()["reports"]
    assert (one["title"], one["headline"]) == ("A & B", "x finds 61 %")
    assert one["written"] == pytest.approx(os.stat(tmp_path / "report.html").st_mtime)
    assert later == {"name": "not-yet", "title": "", "headline": "", "written": None}
    assert server.client.get("/v1/reports/not-yet").status_code == 404
    assert str(tmp_path) not in server.client.get("/v1/reports").text
    closed = serve(anonymous=["write"], reports={"one": str(tmp_path)})
    assert closed.client.get("/v1/reports/one").status_code == 403


def test_a_reports_name_is_a_name() -> None:
    with pytest.raises(ConfigError, match="a name has at most"):
        parse(ServeConfig, {"index": "x", "anonymous": ["search"], "reports": {"../x": "runs/x"}})
