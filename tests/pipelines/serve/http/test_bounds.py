"""Requests that cost too much, from outside: first the attack, then the bound."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from doubles import BM25_ONLY, ModelServer, plain_context, varied_tools
from serving import Running, rewriter, running
from waiting import PATIENCE, until

from pipelines.serve.bounds.fairness import current_caller
from pipelines.serve.http.guard import FREE_ERRORS
from pipelines.serve.keys import digest, make_key
from retrievers.index import build
from retrievers.types import Parameter

KEYS = {name: make_key()[0] for name in ("hostile", "polite")}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tools that match "weather", and three with long descriptions, which do not."""
    folder = tmp_path_factory.mktemp("bounds") / "index"
    parameters = tuple(Parameter(f"argument{number}", "string", "Weather " * 20, False) for number in range(20))
    tools = [
        replace(tool, description="long " * 3000 if number < 3 else f"weather {tool.description}")
        for number, tool in enumerate(varied_tools(150))
    ]
    build(folder, [replace(tool, parameters=parameters) for tool in tools], BM25_ONLY, plain_context())
    return folder


@contextmanager
def keyed(index: Path, **config: Any) -> Iterator[tuple[Running, httpx.Client, httpx.Client]]:
    """A server, and clients with a hostile and a polite key."""
    keys = [{"name": name, "sha256": digest(key), "scopes": ["search"]} for name, key in KEYS.items()]
    with running({"index": str(index), "retriever": "bm25", "anonymous": [], "keys": keys, **config}) as server:
        hostile, polite = (
            httpx.Client(
                base_url=server.url,
                timeout=PATIENCE,
                trust_env=False,
                verify=False,
                headers={"Authorization": f"Bearer {key}"},
                limits=httpx.Limits(max_connections=None),
            )
            for key in KEYS.values()
        )
        with hostile, polite:
            yield server, hostile, polite


def test_a_small_request_gets_no_huge_answer(index: Path) -> None:
    body: dict[str, Any] = {"utterance": ["weather"] * 64, "k": 150, "format": "openai"}
    with keyed(index, limits={"answer_bytes": 1 << 30}) as (_, hostile, polite):
        attack = hostile.post("/v1/search", json=body)
        assert len(attack.content) > 10_000 * len(json.dumps(body))
    with keyed(index, limits={"answer_bytes": 1 << 20}) as (_, hostile, polite):
        began = time.monotonic()
        refused = hostile.post("/v1/search", json=body)
        assert time.monotonic() - began < 5  # nothing was searched
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (422, "answer_too_large")
        assert error["message"].startswith("the answer would have about ")
        words = error["message"].split()
        fits = int(words[words.index("k") + 4]), int(words[words.index("utterances") - 1])
        for change in ({"k": fits[0]}, {"utterance": ["weather"] * fits[1]}):
            answer = polite.post("/v1/search", json={**body, **change})
            assert answer.status_code == 200, answer.text
            assert len(answer.content) <= 1 << 20
            assert len(answer.json()["results"]) == len({**body, **change}["utterance"])


def test_an_answer_that_is_larger_than_estimated_is_not_sent(index: Path) -> None:
    """Most tools are small; those that rank first here are not."""
    body: dict[str, Any] = {"utterance": ["long"] * 16, "k": 3}
    with keyed(index, limits={"answer_bytes": 200_000}) as (_, hostile, _polite):
        refused = hostile.post("/v1/search", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "answer_too_large")
        assert hostile.post("/v1/search", json={**body, "utterance": ["long"] * 3}).status_code == 200


def test_pieces_and_a_whole_answer_are_the_same(index: Path) -> None:
    with keyed(index) as (_, hostile, _polite):
        several = hostile.post("/v1/search", json={"utterance": ["weather", "long"], "k": 40, "format": "mcp"})
        assert int(several.headers["content-length"]) == len(several.content)
        singles = [
            hostile.post("/v1/search", json={"utterance": text, "k": 40, "format": "mcp"}).json()["results"][0]
            for text in ("weather", "long")
        ]
        assert several.json()["results"] == singles
        small = [hostile.post("/v1/search", json={"utterance": "weather", "k": k}).json() for k in (25, 26)]
        assert small[0]["results"][0]["tools"] == small[1]["results"][0]["tools"][:25]
        assert set(small[0]) == set(small[1]) == {"results", "fingerprints", "timings_ms"}


def test_costs_are_charged_to_the_key(index: Path) -> None:
    keys = [{"name": "one", "sha256": digest(KEYS["polite"]), "scopes": ["search"], "per_minute": 100}]
    with keyed(index, keys=keys) as (_, _hostile, polite):
        body = {"utterance": "weather", "k": 150, "format": "openai"}
        statuses = [polite.post("/v1/search", json=body).status_code for _ in range(40)]
    assert statuses[0] == 200
    assert 429 in statuses[10:]  # by utterances alone, 100 would be allowed


@contextmanager
def blocked_searches(server: Running) -> Iterator[threading.Event]:
    """Searches that wait for an event."""
    search, go = server.gateway.catalogue.current.search, threading.Event()
    retrieve = search.retrieve

    def wait(*given: Any) -> Any:
        go.wait(PATIENCE)
        return retrieve(*given)

    search.retrieve = wait  # type: ignore[method-assign]
    try:
        yield go
    finally:
        go.set()
        search.retrieve = retrieve  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("limits", "refused"), [({"queue_seconds": 600.0}, 0), ({"queue_seconds": 0.2, "running": 2}, 38)]
)
def test_a_queue_ends_with_429_in_place_of_a_long_wait(index: Path, limits: dict[str, Any], refused: int) -> None:
    """40 clients at a server that cannot keep up: without a bound all wait, with one most learn when to come back."""
    with keyed(index, limits=limits) as (server, hostile, polite), ThreadPoolExecutor(40) as pool:
        answers: list[httpx.Response] = []
        with blocked_searches(server) as go:
            for _ in range(40):
                pool.submit(lambda: answers.append(hostile.post("/v1/search", json={"utterance": "weather"})))
            until(lambda: len(answers) == refused)
            assert {(answer.status_code, answer.headers["Retry-After"]) for answer in answers} <= {(429, "1")}
            assert polite.get("/healthz").status_code == 200
            go.set()
            until(lambda: len(answers) == 40)
        assert [answer.status_code for answer in answers].count(200) == 40 - refused


def test_a_flood_of_one_key_leaves_turns_to_another(index: Path) -> None:
    with keyed(index, workers=1) as (server, hostile, polite), ThreadPoolExecutor(60) as pool:
        polite.post("/v1/search", json={"utterance": "weather"})
        searched = list[str]()
        retrieve = server.gateway.catalogue.current.search.retrieve
        first, go = threading.Event(), threading.Event()

        def watched(texts: Any, depth: int) -> Any:
            searched.extend(texts)
            first.set()
            go.wait(PATIENCE)
            return retrieve(texts, depth)

        server.gateway.catalogue.current.search.retrieve = watched  # type: ignore[method-assign]
        attack = [
            pool.submit(hostile.post, "/v1/search", json={"utterance": [f"hostile {number}" for number in range(32)]})
            for _ in range(8)
        ]
        assert first.wait(PATIENCE)
        asked = pool.submit(polite.post, "/v1/search", json={"utterance": "polite"})
        until(lambda: server.client.get("/healthz").status_code == 200)
        time.sleep(0.2)
        go.set()
        assert asked.result(PATIENCE).status_code == 200
        assert searched.index("polite") <= 16
        assert {done.result(PATIENCE).status_code for done in attack} <= {200, 429}


def test_a_flood_of_one_key_leaves_the_rewriter_to_another(index: Path) -> None:
    model, go = ModelServer(), threading.Event()
    model.manners = lambda *_: go.wait(PATIENCE) and None
    with (
        keyed(index, rewriter=rewriter(model, concurrency=4)) as (server, hostile, polite),
        ThreadPoolExecutor(30) as pool,
    ):
        server.until_ready()
        attack = [pool.submit(hostile.post, "/v1/rewrite", json={"utterance": f"hi {number}"}) for number in range(20)]
        until(lambda: len(model.asked) == 4 and sum(done.done() for done in attack) == 12)  # the rest was busy
        asked = pool.submit(polite.post, "/v1/rewrite", json={"utterance": "weather"})
        until(lambda: server.gateway.rewriter is not None and server.gateway.rewriter.dispatcher.waiting("polite") == 1)
        go.set()
        [result] = asked.result(PATIENCE).json()["results"]
        assert result["fallback"] is None
    model.stop()


def test_a_caller_that_repeats_errors_waits_between_them_and_no_other(index: Path) -> None:
    with keyed(index) as (_, hostile, polite):
        began = time.monotonic()
        for _ in range(int(FREE_ERRORS) + 20):
            assert hostile.post("/v1/search", json={}).status_code == 422
        assert time.monotonic() - began > 1.0  # its connection pauses
        began = time.monotonic()
        for _ in range(3):
            assert polite.post("/v1/search", json={}).status_code == 422
        assert hostile.post("/v1/search", json={"utterance": "weather"}).status_code == 200


def test_mcp_requests_take_turns_by_their_key(index: Path) -> None:
    names = list[str]()
    with keyed(index) as (server, hostile, _polite):
        run = server.gateway.service.batcher.run

        async def watched(*given: Any) -> Any:
            names.append(current_caller())
            return await run(*given)

        server.gateway.service.batcher.run = watched  # type: ignore[method-assign]
        call = {"name": "search_tools", "arguments": {"query": "weather"}}
        headers = {"Accept": "application/json, text/event-stream"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        assert hostile.post("/mcp", json=body, headers=headers).status_code == 200
    assert names == ["hostile"]
