"""Old versions of a catalogue: freed by the thread that writes, not by the event loop, which would stand still."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from doubles import BM25_ONLY, plain_context, varied_tools
from serving import running
from waiting import PATIENCE, until

from pipelines.serve.catalogue import live_index
from pipelines.serve.catalogue.reading import CatalogueText
from retrievers.index import build
from retrievers.index.tools import LiveTools


def note_thread(threads: list[str]) -> None:
    threads.append(threading.current_thread().name)


def test_changes_free_old_versions_in_the_thread_that_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_index, "MAX_KEPT", 100)
    monkeypatch.setattr(live_index, "KEPT_SECONDS", 0.5)
    build(tmp_path / "index", varied_tools(20), BM25_ONLY, plain_context())
    threads, num_changes = list[str](), 6
    with running({"index": str(tmp_path / "index"), "retriever": "bm25"}) as server:
        for number in range(num_changes):
            weakref.finalize(server.gateway.catalogue.current, note_thread, threads)
            tools = [{"id": "new", "name": "new", "description": f"Mends umbrella {number}."}]
            assert server.client.put("/v1/tools", json={"tools": tools}).status_code == 200
            assert server.search("umbrella")["results"]
        until(lambda: len(threads) == num_changes)  # the last ones too, without another change
    assert {name.partition("_")[0] for name in threads} == {"write"}


def test_a_timer_that_comes_early_frees_an_old_version_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers of a busy loop do; another change, which would free it, may never come."""
    monkeypatch.setattr(live_index, "KEPT_SECONDS", 0.3)
    build(tmp_path / "index", varied_tools(20), BM25_ONLY, plain_context())
    with running({"index": str(tmp_path / "index"), "retriever": "bm25"}) as server:
        old = weakref.ref(server.gateway.catalogue.current)
        tool = {"name": "new", "description": "Mends umbrellas."}
        assert server.client.put("/v1/tools/new", json=tool).status_code == 200
        monkeypatch.setattr(live_index, "KEPT_SECONDS", 1.0)  # now the timer that was set is early
        until(lambda: old() is None, patience=30)


def test_many_changes_keep_few_old_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_index, "MAX_KEPT", 2)
    monkeypatch.setattr(live_index, "KEPT_SECONDS", 3600.0)
    build(tmp_path / "index", varied_tools(20), BM25_ONLY, plain_context())
    with running({"index": str(tmp_path / "index"), "retriever": "bm25"}) as server:
        old = []
        for number in range(6):
            old.append(weakref.ref(server.gateway.catalogue.current))
            tool = {"name": "new", "description": f"Mends umbrella {number}."}
            assert server.client.put("/v1/tools/new", json=tool).status_code == 200
        assert [version() is None for version in old] == [True] * 4 + [False] * 2


def test_definitions_do_not_keep_an_old_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_index, "KEPT_SECONDS", 0.2)
    build(tmp_path / "index", varied_tools(20), BM25_ONLY, plain_context())
    threads = list[str]()
    with running({"index": str(tmp_path / "index"), "retriever": "bm25"}) as server:
        assert server.search("umbrella", format="openai")["results"]
        weakref.finalize(server.gateway.catalogue.current.index.tools, note_thread, threads)
        tool = {"name": "new", "description": "Mends umbrellas."}
        assert server.client.put("/v1/tools/new", json=tool).status_code == 200
        until(lambda: threads, patience=10)  # although no definitions were asked for since
    assert threads[0].startswith("write")


def test_a_long_reading_does_not_free_an_old_version_between_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_index, "KEPT_SECONDS", 0.0)
    build(tmp_path / "index", varied_tools(20), BM25_ONLY, plain_context())
    threads, began, end = list[str](), threading.Event(), threading.Event()
    with running({"index": str(tmp_path / "index"), "retriever": "bm25"}) as server, ThreadPoolExecutor(1) as pool:
        read = server.gateway.reader.read

        def read_slowly(text: CatalogueText, known: LiveTools) -> bytes:
            began.set()
            assert end.wait(PATIENCE)
            return read(text, known)

        monkeypatch.setattr(server.gateway.reader, "read", read_slowly)
        weakref.finalize(server.gateway.catalogue.current.index.tools, note_thread, threads)
        reading = pool.submit(server.post, "/v1/catalogue/read", document='[{"id": "a", "name": "a"}]')
        assert began.wait(PATIENCE)
        tool = {"name": "new", "description": "Mends umbrellas."}
        assert server.client.put("/v1/tools/new", json=tool).status_code == 200
        end.set()
        assert reading.result().status_code == 200
        until(lambda: threads, patience=10)
    assert not threads[0].startswith("Thread-")  # that of the event loop
