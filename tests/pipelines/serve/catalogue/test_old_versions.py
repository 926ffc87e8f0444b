"""Old versions of a catalogue: freed by the thread that writes, not by the event loop, which would stand still."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import pytest
from doubles import BM25_ONLY, plain_context, varied_tools
from serving import running
from waiting import until

from pipelines.serve.catalogue import live_index
from retrievers.index import build


def test_changes_free_old_versions_in_the_thread_that_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_index, "MAX_KEPT", 100)
    monkeypatch.setattr(live_index, "KEPT_SECONDS", 0.5)
    build(tmp_path / "index", varied_tools(20), BM25_ONLY, plain_context())
    threads, num_changes = list[str](), 6

    def note_thread() -> None:
        threads.append(threading.current_thread().name)

    with running({"index": str(tmp_path / "index"), "retriever": "bm25"}) as server:
        for number in range(num_changes):
            weakref.finalize(server.gateway.catalogue.current, note_thread)
            tools = [{"id": "new", "name": "new", "description": f"Mends umbrella {number}."}]
            assert server.client.put("/v1/tools", json={"tools": tools}).status_code == 200
            assert server.search("umbrella")["results"]
        until(lambda: len(threads) == num_changes)  # the last ones too, without another change
    assert {name.partition("_")[0] for name in threads} == {"write"}


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
