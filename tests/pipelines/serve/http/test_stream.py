"""A streamed search: the raw ranking before the rewriter has answered, the final one after it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from doubles import ModelServer
from serving import Running, rewriter

from pipelines.serve.calls.settings import AccessRules
from pipelines.serve.errors import overloaded
from pipelines.serve.schemas.search import SearchRequest, SearchResponse

Serve = Callable[..., Running]
UTTERANCE = "list the open invoices of a customer"


@contextmanager
def stream(server: Running, **body: Any) -> Iterator[Iterator[dict[str, Any]]]:
    with server.client.stream("POST", "/v1/search/stream", json=body) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("application/x-ndjson")
        yield map(json.loads, response.iter_lines())


def ids(answer: dict[str, Any]) -> list[str]:
    return [tool["id"] for tool in answer["results"][0]["tools"]]


def test_the_raw_ranking_comes_while_the_model_still_writes(serve: Serve, model: ModelServer) -> None:
    go_on = threading.Event()

    def wait(prompt: str) -> str:
        go_on.wait(60)
        return "- weather forecast"

    model.answer = wait
    server = serve(rewriter=rewriter(model, fusion={"raw": 0.1}))
    server.until_ready()
    with stream(server, utterance=UTTERANCE, k=5) as lines:
        raw = next(lines)
        assert not go_on.is_set()
        go_on.set()
        [final] = lines
    assert (raw["stage"], final["stage"]) == ("raw", "final")
    assert ids(raw) == ids(server.search(UTTERANCE, k=5, rewrite="off"))
    assert ids(final) == ids(server.search(UTTERANCE, k=5)) != ids(raw)
    assert final["results"][0]["rewrite"]["lines"] == ["weather forecast"]


def test_there_is_one_line_where_nothing_improves_it(serve: Serve, model: ModelServer) -> None:
    server = serve()
    with stream(server, utterance=UTTERANCE, k=3) as lines:
        [final] = lines
    assert final["stage"] == "final"
    assert ids(final) == ids(server.search(UTTERANCE, k=3))
    rewritten = serve(rewriter=rewriter(model))
    with stream(rewritten, utterance=UTTERANCE, rewrite="off") as lines:
        assert [line["stage"] for line in lines] == ["final"]
    assert not model.asked


def test_bad_requests_keep_their_status(serve: Serve) -> None:
    server = serve()
    several = server.post("/v1/search/stream", utterance=[UTTERANCE, UTTERANCE])
    assert (several.status_code, several.json()["error"]["code"]) == (422, "invalid")
    assert server.post("/v1/search/stream", utterance=UTTERANCE, k=0).status_code == 422


def test_a_failure_after_the_raw_ranking_is_the_second_line(
    serve: Serve, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(rewriter=rewriter(model))
    server.until_ready()
    service = server.gateway.service
    search, raw_is_there = service.search, asyncio.Event()

    async def fail_late(request: SearchRequest, access: AccessRules) -> SearchResponse:
        if request.rewrite == "off":
            response = await search(request, access)
            raw_is_there.set()
            return response
        await raw_is_there.wait()
        await asyncio.sleep(0.05)
        raise overloaded("too much at once")

    monkeypatch.setattr(service, "search", fail_late)
    with stream(server, utterance=UTTERANCE, k=5) as lines:
        raw, final = lines
    assert raw["stage"] == "raw"
    assert (final["stage"], final["error"]["code"]) == ("final", "too_many_requests")
