"""Large requests beside small ones, from outside: the parts of a large one wait while a small one runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from doubles import BM25_ONLY, plain_context, varied_tools
from serving import Running
from test_bounds import keyed
from waiting import PATIENCE, until

from pipelines.serve import batcher
from pipelines.serve.bounds.fairness import FairSlots, current_turn, grow_turn
from pipelines.serve.results import STARTED_AT_ONCE, run_together
from retrievers.index import build

MANY = {"utterance": [f"hostile {number}" for number in range(64)], "k": 10}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("giving_way") / "index"
    build(folder, varied_tools(60), BM25_ONLY, plain_context())
    return folder


@contextmanager
def polite_search(server: Running, polite: httpx.Client) -> Iterator[tuple[list[str], Future[httpx.Response]]]:
    """A small search that runs until this context ends; the texts that are searched for meanwhile."""
    search, running, go = server.gateway.catalogue.current.search, threading.Event(), threading.Event()
    searched, retrieve = list[str](), search.retrieve

    def watched(texts: Any, depth: int) -> Any:
        if "polite" in texts:
            running.set()
            go.wait(PATIENCE)
        searched.extend(texts)
        return retrieve(texts, depth)

    search.retrieve = watched  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(polite.post, "/v1/search", json={"utterance": "polite"})
        try:
            assert running.wait(PATIENCE)
            yield searched, asked
        finally:
            go.set()
            search.retrieve = retrieve  # type: ignore[method-assign]


def test_a_large_search_works_beside_a_small_one_without_the_bound(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "MAX_HOLD", 0.0)
    with keyed(index, workers=2) as (server, hostile, polite), polite_search(server, polite) as (searched, _):
        assert hostile.post("/v1/search", json=MANY).status_code == 200
        assert len(searched) == 64  # each of them takes Python's lock from the small search


def test_a_large_search_waits_for_a_small_one(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "MAX_HOLD", 10 * PATIENCE)
    with keyed(index, workers=2) as (server, hostile, polite), ThreadPoolExecutor(1) as pool:
        with polite_search(server, polite) as (searched, asked):
            attack = pool.submit(hostile.post, "/v1/search", json=MANY)
            until(lambda: server.gateway.service.batcher.waiting == 64)
            assert polite.get("/healthz").status_code == 200
            assert searched == []
        assert asked.result(PATIENCE).status_code == 200
        answer = attack.result(PATIENCE)
        assert answer.status_code == 200
        assert len(answer.json()["results"]) == 64
        assert searched[0] == "polite"


def test_a_large_search_is_not_held_for_ever(index: Path) -> None:
    with keyed(index, workers=2) as (server, hostile, polite), polite_search(server, polite) as (searched, _):
        assert hostile.post("/v1/search", json=MANY).status_code == 200
        assert "polite" not in searched


def test_a_small_search_waits_for_no_large_one(index: Path) -> None:
    """Nor for other small ones, and a large one beside a large one runs."""

    async def main() -> None:
        slots = FairSlots(32)
        async with slots.turn("large", PATIENCE):
            turn = current_turn()
            assert turn is not None
            grow_turn(5)
            assert not turn.gives_way()  # it is alone
            slots.take("other", 5)
            assert not turn.gives_way()
            slots.take("small")
            assert turn.gives_way()
            assert not slots.gives_way("small")
            slots.leave("small")
            assert not turn.gives_way()

    asyncio.run(main())


def test_the_searches_of_a_request_leave_turns_of_the_event_loop_to_others() -> None:
    turns, began = 0, list[int]()

    async def search(number: int) -> int:
        began.append(turns)
        return number

    async def main() -> list[int]:
        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        results = await run_together(search(number) for number in range(64))
        counting.cancel()
        return results

    assert asyncio.run(main()) == list(range(64))
    assert max(map(began.count, began)) <= STARTED_AT_ONCE
