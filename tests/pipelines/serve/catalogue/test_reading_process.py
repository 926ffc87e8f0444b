"""Large catalogues that are read, from outside: the server's own process hardly works for them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from serving import Running, running
from waiting import PATIENCE, until

from pipelines.serve.catalogue import reading_process

Serve = Callable[..., Running]
LARGE = json.dumps([{"name": f"tool {number}", "description": "Mends."} for number in range(8_000)])


def process_of(server: Running) -> psutil.Process:
    process = server.gateway.reader._process
    assert process is not None
    return psutil.Process(process.pid)


def test_a_large_catalogue_costs_the_server_little(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def cpu_seconds(server: Running) -> float:
        server.post("/v1/catalogue/read", document=LARGE).raise_for_status()  # loads all that it needs
        began = time.process_time()
        answer = server.post("/v1/catalogue/read", document=LARGE)
        took = time.process_time() - began
        assert {tool["state"] for tool in answer.json()["tools"]} == {"new"}
        return took

    elsewhere = cpu_seconds(serve())
    monkeypatch.setattr(reading_process, "SMALL", 1 << 30)
    assert elsewhere < cpu_seconds(serve()) / 3


def test_a_large_catalogue_is_compared_like_a_small_one(serve: Serve) -> None:
    server = serve()
    schema = {"type": "object", "properties": {"text": {"type": "string", "description": "x" * 200}}}
    tools = [{"name": f"tool{number}", "description": "Mends.", "inputSchema": schema} for number in range(100)]
    document = json.dumps({"tools": tools})
    assert len(document) > reading_process.SMALL
    answer = server.post("/v1/catalogue/read", document=document, provider="Harbour").json()
    assert [tool["id"] for tool in answer["tools"]] == [f"Harbour/tool{number}" for number in range(100)]
    assert {tool["state"] for tool in answer["tools"]} == {"new"}
    for tool in answer["tools"]:
        tool.pop("state")
    server.client.put("/v1/tools", json={"tools": answer["tools"][:50]}).raise_for_status()
    server.client.put("/v1/tools", json={"tools": [answer["tools"][0] | {"name": "other"}]}).raise_for_status()
    again = server.post("/v1/catalogue/read", document=document, provider="Harbour").json()["tools"]
    assert [tool["state"] for tool in again] == ["changed", *["same"] * 49, *["new"] * 50]


def test_a_large_document_that_is_none_gets_a_sentence(serve: Serve) -> None:
    server = serve(limits={"answer_bytes": 100_000})
    broken = server.post("/v1/catalogue/read", document="[" * 100_000)
    large = server.post("/v1/catalogue/read", document=LARGE)
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in (broken, large)] == [
        (422, "invalid"),
        (422, "answer_too_large"),
    ]
    assert "Traceback" not in broken.text


def test_a_process_that_is_killed_is_started_again(serve: Serve) -> None:
    server = serve()
    server.post("/v1/catalogue/read", document=LARGE).raise_for_status()
    killed = process_of(server)
    killed.send_signal(signal.SIGKILL)
    until(lambda: not killed.is_running() or killed.status() == psutil.STATUS_ZOMBIE)
    assert len(server.post("/v1/catalogue/read", document=LARGE).json()["tools"]) == 8_000
    assert process_of(server).pid != killed.pid


def test_a_catalogue_that_takes_too_long_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    server.post("/v1/catalogue/read", document=LARGE).raise_for_status()
    monkeypatch.setattr(reading_process, "MAX_SECONDS", 0.3)
    stopped = process_of(server)
    os.kill(stopped.pid, signal.SIGSTOP)
    late = server.post("/v1/catalogue/read", document=LARGE)
    assert (late.status_code, late.json()["error"]["code"]) == (422, "too_slow")
    monkeypatch.setattr(reading_process, "MAX_SECONDS", PATIENCE)
    assert server.post("/v1/catalogue/read", document=LARGE).status_code == 200


def test_the_process_ends_when_it_is_idle(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_process, "IDLE_SECONDS", 0.2)
    server = serve()
    server.post("/v1/catalogue/read", document=json.dumps([{"name": "small"}])).raise_for_status()
    assert not server.gateway.reader.is_running
    server.post("/v1/catalogue/read", document=LARGE).raise_for_status()
    until(lambda: not server.gateway.reader.is_running)


def test_the_process_ends_with_the_server(index: Path) -> None:
    with running({"index": str(index), "retriever": "bm25"}) as server:
        server.post("/v1/catalogue/read", document=LARGE).raise_for_status()
        process = process_of(server)
        assert process.is_running()
    assert not process.is_running()


def test_a_server_that_stops_does_not_wait_for_a_catalogue(serve: Serve) -> None:
    server = serve()
    server.post("/v1/catalogue/read", document=LARGE).raise_for_status()
    os.kill(process_of(server).pid, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        dropped = pool.submit(server.post, "/v1/catalogue/read", document=LARGE)
        until(server.gateway.reader._lock.locked)
        began = time.monotonic()
        server.gateway.reader.close()
        assert time.monotonic() - began < reading_process.MAX_SECONDS / 2
        assert (dropped.result().status_code, server.gateway.reader.is_running) == (503, False)
    late = server.post("/v1/catalogue/read", document=LARGE)
    assert (late.status_code, late.json()["error"]["code"]) == (503, "unavailable")


@pytest.mark.parametrize(
    "command",
    [
        (sys.executable, "-c", """input(); print('{"ids": ["a', end='')"""),  # killed in the middle of a line
        ("/nonexistent/python",),
    ],
    ids=["broken", "missing"],
)
def test_a_process_that_fails_gets_the_caller_a_sentence(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    server, usual = serve(), reading_process.COMMAND
    monkeypatch.setattr(reading_process, "COMMAND", command)
    failed = server.post("/v1/catalogue/read", document=LARGE)
    assert (failed.status_code, failed.json()["error"]["code"]) == (503, "unavailable")
    monkeypatch.setattr(reading_process, "COMMAND", usual)
    assert server.post("/v1/catalogue/read", document=LARGE).status_code == 200


def test_files_of_the_working_directory_are_not_taken_for_modules(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").touch()
    (tmp_path / "json.py").write_text("raise SystemExit('this is not the json of Python')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as after `python -c`
    assert len(server.post("/v1/catalogue/read", document=LARGE).json()["tools"]) == 8_000
