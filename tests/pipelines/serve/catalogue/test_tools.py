"""The live catalogue over HTTP: an answered change is searchable, durable, and seen by other processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from doubles import changed, plain_context, varied_tools
from serving import Running
from waiting import until

from pipelines.serve.catalogue.feedback import read_feedback
from retrievers.index import Index, add, verify

Serve = Callable[..., Running]
COAT = {"name": "coatFinder", "description": "Finds a coat for any weather.", "provider": "Wardrobe"}


def first(server: Running, text: str) -> str:
    return str(server.search(text, k=1, rewrite="off")["results"][0]["tools"][0]["id"])


@pytest.mark.parametrize("tool", ["coat", "clothes/coat finder", "a/../b", "ünïcode/天气", "100%/a?b#c", "x" * 512])
def test_a_tool_is_put_found_changed_and_deleted(serve: Serve, index: Path, tool: str) -> None:
    server = serve()
    path = f"/v1/tools/{quote(tool, safe='')}"
    put = server.client.put(path, json={**COAT, "schema": {"type": "object", "properties": {"size": {}}}})
    assert (put.status_code, put.json()["added"]) == (200, 1)
    assert first(server, "coatFinder") == tool
    got = server.client.get(path).json()
    assert (got["id"], got["schema"]) == (tool, {"type": "object", "properties": {"size": {}}})
    assert tool in Index(index, plain_context()).tools  # on the disk, too
    assert server.client.put(path, json={**COAT, "description": "Sells umbrellas."}).json()["updated"] == 1
    assert first(server, "umbrellas") == tool
    assert server.client.delete(path).json()["removed"] == 1
    assert server.client.get(path).status_code == 404
    assert server.client.delete(path).status_code == 404
    assert tool not in [found["id"] for found in server.search("coat finder umbrellas", k=60)["results"][0]["tools"]]
    assert verify(index) == []


def test_a_call_is_kept_and_not_searched(serve: Serve) -> None:
    server = serve()
    call = {"method": "GET", "server": "https://zeppelin.example", "parameters": [{"name": "size", "in": "query"}]}
    assert server.client.put("/v1/tools/coat", json={**COAT, "call": call}).status_code == 200
    assert server.client.get("/v1/tools/coat").json()["call"] == call
    assert server.client.put("/v1/tools/hat", json={**COAT, "description": "A zeppelin for your head."}).is_success
    assert server.client.get("/v1/tools/hat").json()["call"] is None
    assert first(server, "zeppelin") == "hat"
    server.client.put("/v1/tools", json={"tools": [{"id": "coat", **COAT, "description": "A warm coat."}]})
    assert server.client.get("/v1/tools/coat").json()["call"] == call  # kept where the new version has none
    server.client.put("/v1/tools/coat", json={**COAT, "call": None})
    assert server.client.get("/v1/tools/coat").json()["call"] is None


def test_many_at_once_and_page_by_page(serve: Serve) -> None:
    server = serve()
    tools = [{"id": f"new-{number:02}", **COAT} for number in range(30)]
    assert server.client.put("/v1/tools", json={"tools": tools}).json()["added"] == 30
    assert server.client.put("/v1/tools", json={"tools": tools}).json()["unchanged"] == 30
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = server.client.get("/v1/tools", params={"limit": 7, "after": after, "provider": "wardrobe"}).json()
        seen += [tool["id"] for tool in page["tools"]]
        after = page["next"]
    assert seen == [tool["id"] for tool in tools]
    twice = server.client.put("/v1/tools", json={"tools": [tools[0], tools[0]]})
    assert (twice.status_code, twice.json()["error"]["code"]) == (422, "invalid")


def test_what_another_process_writes_is_taken_up(serve: Serve, index: Path) -> None:
    server = serve(watch_seconds=0.1)
    before = server.search("weather")["fingerprints"]["index"]
    change = add(index, varied_tools(5, start=500), plain_context())
    until(lambda: server.search("weather")["fingerprints"]["index"] != before)
    assert server.search("weather")["fingerprints"]["index"] == change.fingerprint
    assert server.client.get("/v1/tools/tool-502").status_code == 200


def test_a_damaged_index_on_disk_does_not_end_the_one_in_memory(serve: Serve, index: Path) -> None:
    server = serve(watch_seconds=0.05)
    (index / "manifest.json").write_text("{")
    until(lambda: server.client.get("/readyz").json()["stale"])
    assert server.search("weather")["results"][0]["tools"]
    refused = server.client.put("/v1/tools/coat", json=COAT)
    assert refused.status_code == 503
    assert str(index) not in refused.text
    assert server.search("weather")["results"][0]["tools"]


def test_no_request_is_dropped_while_the_catalogue_changes(serve: Serve) -> None:
    server = serve(watch_seconds=0.05)
    stop, answers = threading.Event(), list[int]()

    def ask() -> None:
        while not stop.is_set():
            answers.append(len(server.search("weather order", k=3)["results"][0]["tools"]))

    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(ask) for _ in range(4)]
        try:
            for number, tool in enumerate(varied_tools(12)):
                body = {"name": tool.name, "description": changed(tool, f"version {number}").description}
                before = len(answers)
                assert server.client.put(f"/v1/tools/{tool.id}", json=body).status_code == 200
                assert server.client.delete(f"/v1/tools/tool-{20 + number:03}").status_code == 200
                until(lambda before=before: len(answers) > before or any(each.done() for each in callers))  # type: ignore[misc]
        finally:
            stop.set()
        for caller in callers:
            caller.result()  # raises what a caller met
    assert len(answers) >= 12
    assert set(answers) == {3}


def test_the_last_tool_stays(serve: Serve, index: Path) -> None:
    server = serve()
    codes = [server.client.delete(f"/v1/tools/{tool.id}").status_code for tool in varied_tools(60)]
    assert codes == [200] * 59 + [422]


def test_confirmed_tools_are_kept_and_torn_lines_passed_over(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "feedback"
    server = serve(feedback=str(folder))
    said = {"utterance": "is it\nraining? 🌧", "tools": ["tool-001", "tool-002", "tool-001"]}
    assert server.post("/v1/feedback", **said).json() == {"kept": True}
    [path] = folder.iterdir()
    with path.open("ab") as stream:
        stream.write(b'{"utterance": "torn by a power c')
    assert server.post("/v1/feedback", utterance="hi", tools=["tool-003"]).status_code == 200
    first, second = read_feedback(folder)
    assert (first["utterance"], first["tools"], first["key"]) == (
        said["utterance"],
        ["tool-001", "tool-002"],
        "anonymous",
    )
    assert first["index"] == server.gateway.catalogue.current.index.fingerprint
    assert second["utterance"] == "hi"
    unknown = server.post("/v1/feedback", utterance="hi", tools=["nobody's"])
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (422, "unknown_tool")
    assert "as a search gives them" in unknown.json()["error"]["message"]
    assert serve().post("/v1/feedback", utterance="hi", tools=["tool-003"]).status_code == 404
