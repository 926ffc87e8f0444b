"""Several answers per query are merged by votes, in the server and in batch jobs alike."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from doubles import ModelServer, Reply, completion
from serving import Running, make_test_rewriter, rewriter

from pipelines.batch.api import run
from pipelines.batch.settings import BatchConfig
from pipelines.rewriters import RewriterSettings, make_rewriter
from rewrite.settings import Sampling, ServerSettings
from rewrite.types import RewriteRequest

Serve = Callable[..., Running]
SAID = ["- fly\n- pay", "- rent a car", "- pay"]
JOINED = ["pay", "fly", "rent a car"]
SEVERAL = {"temperature": 1.0, "answers": 3, "seed": 7, "min_votes": 1}


@pytest.fixture
def torn() -> Iterator[ModelServer]:
    """One that says something else every time, one answer at a time."""
    turns = itertools.cycle(SAID)
    made = ModelServer(lambda text: next(turns))
    yield made
    made.stop()


def _all_at_once(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Reply:
    replies: list[Any] = [completion(text)[1] for text in SAID[: body["n"]]]
    choices = [choice for reply in replies for choice in reply["choices"]]
    return 200, {"model": "rewriter", "choices": choices, "usage": {"completion_tokens": 10}}


def test_a_server_that_gives_all_answers_is_asked_once(serve: Serve, torn: ModelServer) -> None:
    torn.manners = _all_at_once
    server = serve(rewriter=rewriter(torn, sampling=SEVERAL))
    server.until_ready()
    found = server.post("/v1/rewrite", utterance="a trip").json()["results"][0]["rewrite"]
    assert found["lines"] == JOINED
    assert [(body["n"], body["seed"], body["temperature"]) for body in torn.asked] == [(3, 7, 1.0)]
    again = server.post("/v1/rewrite", utterance="a trip").json()["results"][0]["rewrite"]
    assert again["lines"] == JOINED
    assert len(torn.asked) == 1  # it is remembered


def test_a_server_that_gives_one_at_a_time_is_asked_again(serve: Serve, torn: ModelServer) -> None:
    server = serve(rewriter=rewriter(torn, sampling=SEVERAL | {"max_lines": 2}))
    server.until_ready()
    found = server.post("/v1/rewrite", utterance="a trip").json()["results"][0]["rewrite"]
    assert found["lines"] == JOINED[:2]  # whichever of the later ones comes first
    assert sorted((body.get("n", 1), body["seed"]) for body in torn.asked) == [(1, 8), (1, 9), (3, 7)]


def test_a_model_in_this_process_answers_as_the_rewriter_does(serve: Serve, tiny_lm: Path, tmp_path: Path) -> None:
    make_test_rewriter(tiny_lm, tmp_path / "rewriter", 1)
    facts = {"path": str(tmp_path / "rewriter"), "base": str(tiny_lm)}
    sampling = {"temperature": 1.0, "answers": 4, "max_tokens": 8, "seed": 3}
    made, _ = make_rewriter(RewriterSettings(**facts, sampling=Sampling(**sampling)), "cpu")
    [expected] = made.rewrite([RewriteRequest("book me a flight")])
    server = serve(rewriter={**facts, "sampling": sampling, "backend": {"kind": "transformers"}}, deadline_ms=20_000)
    server.until_ready()
    found = server.post("/v1/rewrite", utterance="book me a flight").json()["results"][0]["rewrite"]
    assert found["lines"] == list(expected.lines)
    assert expected.tokens == sum(each.tokens for each in made.sample([RewriteRequest("book me a flight")])[0])


def test_a_job_joins_them_too(tmp_path: Path, torn: ModelServer) -> None:
    torn.manners = _all_at_once
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(text) + "\n" for text in ("a trip", "another")))
    settings = RewriterSettings(
        template="needs", backend=ServerSettings(torn.url, torn.name), sampling=Sampling(**SEVERAL)
    )
    run(str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), BatchConfig(rewriter=settings), show=False)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["queries"], row["tokens"]) for row in rows] == [(JOINED, 10)] * 2
