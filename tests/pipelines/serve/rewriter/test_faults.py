"""If the model fails in any way, the caller gets the raw ranking in time, with the reason."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from doubles import BM25_ONLY, ModelServer, Reply, completion, plain_context, varied_tools
from serving import PATIENT, Running, rewriter, running
from waiting import PATIENCE, Clock, until

from pipelines.serve.rewriter.breaker import Breaker
from retrievers.index import build

Serve = Callable[..., Running]
TEXT = "book me a flight and a hotel"
SHORT = 500
"""Milliseconds for a model that does not answer."""
enough = threading.Event()
"""What a slow model waits for; no test is over before."""


@pytest.fixture(autouse=True)
def not_yet() -> Iterator[None]:
    enough.clear()
    yield
    enough.set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The breakers' time, which passes when the test says so."""
    made = Clock()
    monkeypatch.setattr("pipelines.serve.rewriter.engine.Breaker", partial(Breaker, clock=made))
    return made


def slow(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Reply | None:
    enough.wait(PATIENCE)
    return None


def hangs_up(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Reply:
    handler.connection.close()
    raise ConnectionAbortedError


def breaks_off(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Reply:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [{"mess')
    handler.wfile.flush()
    handler.connection.shutdown(2)
    raise ConnectionAbortedError


def dribbles(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Reply:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    while not enough.wait(0.1):
        handler.wfile.write(b" ")
        handler.wfile.flush()
    raise ConnectionAbortedError


MANNERS: dict[str, tuple[Callable[[BaseHTTPRequestHandler, dict[str, Any]], Reply | None], str]] = {
    "slow": (slow, "deadline"),
    "dribbles": (dribbles, "deadline"),
    "hangs up": (hangs_up, "unavailable"),
    "breaks off": (breaks_off, "unavailable"),
    "500": (lambda *_: (500, {"error": "boom"}), "unavailable"),
    "503": (lambda *_: (503, b"<html>"), "unavailable"),
    "429": (lambda *_: (429, {}), "unavailable"),
    "404": (lambda *_: (404, {"error": {"message": "The model does not exist."}}), "refused"),
    "401": (lambda *_: (401, {}), "refused"),
    "redirect": (lambda *_: (302, b""), "refused"),
    "html": (lambda *_: (200, b"<html>hello</html>"), "garbage"),
    "empty": (lambda *_: (200, b""), "garbage"),
    "not utf-8": (lambda *_: (200, b'{"choices": "\xff\xfe"}'), "garbage"),
    "no choices": (lambda *_: (200, {"choices": []}), "garbage"),
    "other shape": (lambda *_: (200, {"choices": [{"text": "x"}]}), "garbage"),
    "list": (lambda *_: (200, [1, 2]), "garbage"),
    "no text": (lambda *_: completion({"a": 1}), "garbage"),
    "deep": (lambda *_: (200, b"[" * 100_000), "garbage"),
    "huge": (lambda *_: (200, b" " * 3_000_000), "garbage"),
    "another model": (lambda *_: completion("- find flights", "somebody-else"), "wrong_model"),
    "prose": (lambda *_: completion("Sure! I would be happy to help."), "unparseable"),
    "null": (lambda *_: completion(None), "unparseable"),
    "too long": (lambda *_: (400, {"error": {"message": "maximum context length is 64 tokens"}}), "too_long"),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, ModelServer]]:
    """A server that goes on asking, and the model it asks."""
    index = tmp_path_factory.mktemp("faults") / "index"
    build(index, varied_tools(60), BM25_ONLY, plain_context())
    model = ModelServer()
    with running({"index": str(index), "retriever": "bm25", "rewriter": rewriter(model, max_failures=100)}) as server:
        server.until_ready()
        yield server, model
    model.stop()


def counted(server: Running, reason: str) -> float:
    """How often the raw ranking was given for that reason."""
    page = server.client.get("/metrics").text
    return float((re.search(rf'^toolrewrite_fallbacks_total{{reason="{reason}"}} (\S+)$', page, re.M) or ["", "0"])[1])


@pytest.mark.parametrize("manner", MANNERS)
def test_a_model_that_misbehaves_costs_no_answer(both: tuple[Running, ModelServer], manner: str) -> None:
    server, model = both
    text = f"{TEXT} {manner}"  # each its own: answers are remembered
    raw = server.search(text, rewrite="off")["results"][0]["tools"]
    model.manners, reason = MANNERS[manner]
    before = counted(server, reason)
    began = time.monotonic()
    [result] = server.search(text, deadline_ms=SHORT if reason == "deadline" else PATIENT)["results"]
    assert time.monotonic() - began < PATIENT / 1000 / 2  # the slow ones are still at it, and would be for ever
    assert result["fallback"] == {"reason": reason}
    assert result["tools"] == raw
    assert counted(server, reason) == before + 1
    model.manners = lambda *_: None
    again = server.search(f"{text} again")["results"][0]
    assert again["fallback"] is None
    assert not again["rewrite"]["cached"]


def test_a_cut_answer_is_used_without_its_last_line(both: tuple[Running, ModelServer]) -> None:
    server, model = both
    model.manners = lambda *_: completion("- find flights\n- find ho", reason="length")
    [result] = server.search(f"{TEXT} cut")["results"]
    assert (result["rewrite"]["lines"], result["rewrite"]["finished"]) == (["find flights"], False)


def test_nobody_there_and_somebody_later(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.serve.gateway.RETRY_SECONDS", 0.1)
    with socket.socket() as held:  # nobody listens there, and nobody else gets the port meanwhile
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        engine = {"kind": "servers", "urls": [f"http://127.0.0.1:{port}/v1"], "model": "rewriter"}
        server = serve(rewriter=rewriter(backend=engine))
        assert server.search(TEXT)["results"][0]["fallback"] == {"reason": "starting"}
        back = ModelServer(port=port)
    try:
        server.until_ready()
        assert server.search(TEXT)["results"][0]["fallback"] is None
    finally:
        back.stop()


def test_the_next_server_is_asked_where_one_fails(serve: Serve, model: ModelServer, clock: Clock) -> None:
    other = ModelServer()
    try:
        server = serve(rewriter=rewriter(model, other))
        server.until_ready()
        # Ready means that one of them is known; they take turns as soon as both are.
        until(lambda: (model.asked and other.asked) or (server.search(f"{TEXT} {time.monotonic()}") and None))
        model.asked.clear()
        other.asked.clear()
        model.manners = MANNERS["500"][0]
        fallbacks = [server.search(f"{TEXT} {number}")["results"][0]["fallback"] for number in range(12)]
        assert fallbacks == [None] * 12
        assert len(other.asked) == 12
        assert len(model.asked) == 5  # then its breaker opened, and it is not yet tried again
    finally:
        other.stop()


def test_what_fails_again_and_again_is_left_alone_and_tried_later(
    serve: Serve, model: ModelServer, clock: Clock
) -> None:
    server = serve(rewriter=rewriter(model, max_failures=3), deadline_ms=SHORT)
    server.until_ready()
    model.manners = slow
    reasons: list[str] = []
    while "circuit_open" not in reasons and len(reasons) < 20:
        reasons.append(server.search(f"{TEXT} {len(reasons)}")["results"][0]["fallback"]["reason"])
    # Three; more only where the time was over before the model could be asked.
    assert reasons[:3] == ["deadline"] * 3
    assert set(reasons[3:-1]) <= {"deadline"}
    assert reasons[-1] == "circuit_open"
    model.manners = lambda *_: None
    for now, fallback in ((0.0, {"reason": "circuit_open"}), (0.9, {"reason": "circuit_open"}), (1.0, None)):
        clock.now = 1000.0 + now
        assert server.search(f"{TEXT} at {now}", deadline_ms=PATIENT)["results"][0]["fallback"] == fallback


def test_callers_in_a_hurry_close_nothing_for_others(serve: Serve, model: ModelServer) -> None:
    server = serve(rewriter=rewriter(model, max_failures=2))
    server.until_ready()
    model.manners = slow
    for number in range(6):
        assert server.search(f"{TEXT} {number}", deadline_ms=60)["results"][0]["fallback"] == {"reason": "deadline"}
    enough.set()
    assert server.search(f"{TEXT} patiently")["results"][0]["fallback"] is None


@pytest.mark.parametrize("known", [True, False])
def test_an_utterance_that_does_not_fit_is_not_asked(serve: Serve, model: ModelServer, known: bool) -> None:
    """The limit is the server's own, or that of the config."""
    config = rewriter(model)
    if known:
        model.context = 400
    else:
        config["backend"] = {"kind": "server", "url": model.url, "model": "rewriter", "context": 400}
    server = serve(rewriter=config)
    server.until_ready()
    [result] = server.search("word " * 1500)["results"]
    assert result["fallback"] == {"reason": "too_long"}
    assert model.asked == []


def test_more_than_the_model_bears_is_answered_raw(serve: Serve, model: ModelServer) -> None:
    model.manners = slow
    server = serve(rewriter=rewriter(model, concurrency=2))
    server.until_ready()
    with ThreadPoolExecutor(12) as callers:
        pending = callers.map(lambda number: server.search(f"{TEXT} {number}")["results"][0], range(12))
        # Two are asked, two wait for their turn, and the rest is answered meanwhile.
        until(lambda: counted(server, "busy") == 8)
        enough.set()
        results = list(pending)
    reasons = [result["fallback"] and result["fallback"]["reason"] for result in results]
    assert all(result["tools"] for result in results)
    assert (reasons.count(None), reasons.count("busy")) == (4, 8)
