"""A model that hangs once under load opens its circuit once, and for the shortest time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from doubles import ModelServer
from serving import Running, rewriter
from waiting import until

from pipelines.serve.rewriter.breaker import Breaker

Serve = Callable[..., Running]


def test_those_who_asked_before_it_opened_open_it_once() -> None:
    now = [0.0]
    breaker = Breaker(5, first_pause=1.0, clock=lambda: now[0])
    for ticket in [breaker.enter() for _ in range(64)]:
        breaker.failed(ticket)
    now[0] = 0.9
    assert not breaker.enter()
    now[0] = 1.0
    assert breaker.enter()


def test_a_late_word_says_nothing_of_the_one_who_tries() -> None:
    now = [0.0]
    breaker = Breaker(5, first_pause=1.0, clock=lambda: now[0])
    early = [breaker.enter() for _ in range(64)]
    for ticket in early[:5]:
        breaker.failed(ticket)
    now[0] = 1.0
    probe = breaker.enter()
    breaker.failed(early[5])
    breaker.undecided(early[6])
    assert (breaker.state, breaker.enter()) == ("half-open", 0)  # still one alone
    breaker.succeeded()
    for ticket in early[7:]:
        breaker.failed(ticket)
    assert breaker.state == "closed"
    for _ in range(5):
        breaker.failed(breaker.enter())
    breaker.failed(probe)
    now[0] = 2.0
    assert breaker.enter()  # open for one second again, not for two


def test_rewriting_is_back_soon_after_one_hang(serve: Serve, model: ModelServer) -> None:
    server = serve(rewriter=rewriter(model), deadline_ms=2000)
    server.until_ready()
    hangs = threading.Event()
    model.manners = lambda *_: None if hangs.wait(30) else (500, {})
    with ThreadPoolExecutor(32) as callers:
        found = list(callers.map(lambda number: server.search(f"a flight {number}")["results"][0], range(32)))
    assert {result["fallback"]["reason"] for result in found} <= {"deadline", "circuit_open"}
    hangs.set()
    took = until(lambda: server.search(f"a flight at {time.monotonic()}")["results"][0]["fallback"] is None)
    assert took < 20.0  # a second is due, the rest is for a busy machine; counted anew by all who waited, it is 30
