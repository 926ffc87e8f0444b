"""The server backend before a real HTTP server that behaves, and misbehaves, as OpenAI's, vLLM's and others do."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, until

from rewrite.backends import http_client
from rewrite.backends.base import make_backend
from rewrite.backends.server import ServerBackend
from rewrite.backends.streams import open_stream
from rewrite.errors import BackendDown, RewriteError
from rewrite.rewriter import Rewriter
from rewrite.settings import Sampling, ServerSettings
from rewrite.template import load_template
from rewrite.types import Answer, Prompt, RewriteRequest

KEY = "sk-very-secret-0123456789"
GREEDY = Sampling(max_tokens=16)
Reply = tuple[int, Any, dict[str, str]]
TOO_LONG = "This model's maximum context length is 64 tokens. However, your request has 80 input tokens."


def asked(*contents: str) -> list[Prompt]:
    return [[{"role": "user", "content": content}] for content in contents]


def completion(*texts: str | None, tokens: int = 3, reason: str = "stop") -> Reply:
    choices = [{"message": {"role": "assistant", "content": text}, "finish_reason": reason} for text in texts]
    return 200, {"choices": choices, "usage": {"completion_tokens": tokens}}, {}


def error(status: int, message: str, **headers: str) -> Reply:
    return status, {"error": {"message": message, "type": "Error", "code": status}}, headers


class Server(ThreadingHTTPServer):
    """Answers with what was said to it, unless a test gives it other manners."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.routes: dict[str, Callable[[dict[str, Any]], Reply]] = {"/v1/chat/completions": echo}
        self.raw: Callable[[Handler], None] | None = None
        self.busy = self.busiest = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def requests(self, path: str = "/v1/chat/completions") -> list[dict[str, Any]]:
        return [body for seen, body, _ in self.seen if seen == path]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.answer({})

    def do_POST(self) -> None:
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, body: dict[str, Any]) -> None:
        with self.server.lock:
            self.server.seen.append((self.path, body, dict(self.headers)))
            self.server.busy += 1
            self.server.busiest = max(self.server.busiest, self.server.busy)
        if self.server.raw is not None:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.server.raw(self)
            return
        route = self.server.routes.get(self.path)
        status, facts, headers = route(body) if route else error(404, "Not Found")
        with self.server.lock:
            self.server.busy -= 1
        data = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
        try:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True  # the client did not wait

    def log_message(self, *_: object) -> None:
        pass


def echo(body: dict[str, Any]) -> Reply:
    return completion(*[f"- {body['messages'][-1]['content']}"] * body.get("n", 1), tokens=3 * body.get("n", 1))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(http_client, "FIRST_WAIT", 0.01)
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def backend(server: Server, adapter: Path | None = None, **settings: Any) -> ServerBackend:
    return ServerBackend(ServerSettings(server.url, "tiny", **settings), adapter=adapter)


def test_prompts_are_asked_and_answered_in_order(server: Server) -> None:
    made = make_backend(ServerSettings(server.url, "tiny"), None)
    words = [f"word {number}" for number in range(40)]
    answers = made.generate(asked(*words), Sampling(max_tokens=16, seed=7))
    assert answers == [[Answer(f"- {word}", 3)] for word in words]
    path, body, headers = server.seen[0]
    assert path == "/v1/chat/completions"
    assert body == {"model": "tiny", "messages": body["messages"], "max_tokens": 16, "temperature": 0.0, "seed": 7}
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert made.generate([], GREEDY) == []


def test_no_more_requests_at_a_time_than_allowed(server: Server) -> None:
    def slowly(body: dict[str, Any]) -> Reply:
        until(lambda: server.busiest >= 3)
        time.sleep(0.02)
        return echo(body)

    server.routes["/v1/chat/completions"] = slowly
    made = backend(server, concurrency=3)
    callers = [threading.Thread(target=made.generate, args=(asked(*"abcdefgh"), GREEDY)) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(server.seen) == 16
    assert server.busiest == 3


def test_a_stream_keeps_the_server_busy_and_one_refusal_is_one_prompts(server: Server) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        until(lambda: server.busiest >= 4)
        time.sleep(0.02)
        said = body["messages"][-1]["content"]
        replies = {"7": error(400, "this one offends me"), "9": error(400, TOO_LONG)}
        return replies.get(said) or echo(body)

    server.routes["/v1/chat/completions"] = answer
    stream = open_stream(backend(server, concurrency=4), GREEDY, 1)
    assert stream.overlaps
    waiting = [(str(number), asked(str(number))[0]) for number in range(40)]
    found: dict[str, list[Answer] | str] = {}
    while len(found) < 40:
        stream.push([waiting.pop(0) for _ in range(min(stream.capacity, len(waiting)))])
        found.update(stream.pull())
    assert server.busiest == 4
    assert found.pop("9") == []
    assert "this one offends me" in str(found.pop("7"))
    assert found == {key: [Answer(f"- {key}", 3)] for key in found}
    assert stream.pull() == []


@pytest.mark.parametrize("reply", [error(401, "who are you"), error(503, "later")])
def test_trouble_that_is_not_one_prompts_ends_a_stream(server: Server, reply: Reply) -> None:
    server.routes["/v1/chat/completions"] = lambda body: reply
    stream = open_stream(backend(server, retries=1), GREEDY, 1)
    stream.push([("a", asked("x")[0]), ("b", asked("y")[0])])
    with pytest.raises((RewriteError, BackendDown), match=r"who are you|later"):
        stream.pull()
    stream.close()


def test_only_prompts_that_can_be_cut_are_counted(server: Server) -> None:
    server.routes["/tokenize"] = lambda body: (200, {"count": 5}, {})
    ours = backend(server, context=1000)
    Rewriter(load_template("needs"), ours, GREEDY).rewrite([RewriteRequest("hello")])
    assert server.requests("/tokenize") == []
    Rewriter(load_template("candidates"), ours, GREEDY).rewrite([RewriteRequest("hello", ("a tool",))])
    assert len(server.requests("/tokenize")) == 1


def test_several_answers_are_sampled(server: Server) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, answers=4, max_tokens=16, seed=1)
    [answers] = backend(server).generate(asked("hi"), sampling)
    assert answers == [Answer("- hi", 3)] * 4
    [body] = server.requests()
    assert (body["temperature"], body["top_p"], body["n"], body["seed"]) == (0.7, 0.9, 4, 1)


def test_a_server_that_gives_one_answer_at_a_time_is_asked_for_more(server: Server) -> None:
    server.routes["/v1/chat/completions"] = lambda body: completion(f"- seed {body['seed']}")
    [answers] = backend(server).generate(asked("hi"), Sampling(temperature=1.0, answers=3, seed=10))
    assert [answer.text for answer in answers] == ["- seed 10", "- seed 11", "- seed 12"]


def test_cut_null_and_uneven_answers(server: Server) -> None:
    server.routes["/v1/chat/completions"] = lambda body: completion(None, "- a", tokens=5, reason="length")
    [answers] = backend(server).generate(asked("hi"), Sampling(temperature=1.0, answers=2))
    assert answers == [Answer("", 3, finished=False), Answer("- a", 2, finished=False)]
    server.routes["/v1/chat/completions"] = lambda body: (200, {**completion(None)[1], "usage": None}, {})
    assert backend(server).generate(asked("hi"), GREEDY) == [[Answer("", 0)]]


@pytest.mark.parametrize(
    "trouble",
    [
        error(429, "slow down", Retry_After="0.2"),
        error(429, "slow down", Retry_After="a date"),
        error(429, "slow down", Retry_After="soon"),
        error(503, "loading"),
        (502, b"<html>Bad Gateway</html>", {}),
    ],
)
def test_want_of_the_server_passes(server: Server, trouble: Reply) -> None:
    date = int(time.time()) + 2
    if trouble[2].get("Retry_After") == "a date":
        trouble = error(429, "slow down", Retry_After=formatdate(date, usegmt=True))
    replies = iter([trouble, trouble])
    server.routes["/v1/chat/completions"] = lambda body: next(replies, None) or echo(body)
    started = time.monotonic()
    assert backend(server).generate(asked("hi"), GREEDY) == [[Answer("- hi", 3)]]
    assert len(server.seen) == 3
    if trouble[2].get("Retry_After") == "0.2":
        assert time.monotonic() - started >= 0.4
    if trouble[2].get("Retry_After", "").endswith("GMT"):
        assert time.time() >= date


def test_a_server_that_is_down_for_ever_is_named(server: Server) -> None:
    server.routes["/v1/chat/completions"] = lambda body: error(500, f"boom, {body['messages'][0]['content']}")
    with pytest.raises(BackendDown, match="500 boom, hi") as caught:
        backend(server, retries=2).generate(asked("hi"), GREEDY)
    assert server.url in str(caught.value)
    assert len(server.seen) == 3


@pytest.mark.parametrize("how", ["seconds", "date"])
def test_a_server_that_wants_an_hour_is_down_at_once(server: Server, how: str) -> None:
    hour = "3600" if how == "seconds" else formatdate(time.time() + 3600, usegmt=True)
    server.routes["/v1/chat/completions"] = lambda body: error(429, "quota used up", Retry_After=hour)
    with pytest.raises(BackendDown, match="429 quota used up"):
        backend(server).generate(asked("hi"), GREEDY)
    assert len(server.seen) == 1


def test_a_server_that_is_too_slow_is_down(server: Server) -> None:
    enough = threading.Event()

    def slowly(body: dict[str, Any]) -> Reply:
        enough.wait(PATIENCE)
        return echo(body)

    server.routes["/v1/chat/completions"] = slowly
    with pytest.raises(BackendDown, match=r"no answer within 0\.1 seconds"):
        backend(server, timeout=0.1, retries=1).generate(asked("hi"), GREEDY)
    until(lambda: len(server.seen) == 2)
    enough.set()


def test_a_server_that_sends_empty_lines_for_ever_is_down(server: Server) -> None:
    """As some do while they compute: every piece comes in time, the answer never."""

    ended = threading.Event()

    def trickling(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for _ in range(500):
            handler.wfile.write(b"1\r\n\n\r\n")
            if ended.wait(0.02):
                break

    server.raw = trickling
    with pytest.raises(BackendDown, match=r"no answer within 0\.3 seconds"):
        backend(server, timeout=0.3, retries=0).generate(asked("hi"), GREEDY)
    ended.set()


def test_nobody_there_is_down(server: Server) -> None:
    with Server() as gone:
        url = gone.url
    made = ServerBackend(ServerSettings(url, "tiny", retries=1))
    with pytest.raises(BackendDown, match="does not answer") as caught:
        made.generate(asked("hi"), GREEDY)
    assert url in str(caught.value)


def test_trouble_ends_the_batch_soon(server: Server) -> None:
    def first_breaks(body: dict[str, Any]) -> Reply:
        time.sleep(0.02)
        return error(400, "no") if body["messages"][0]["content"] == "0" else echo(body)

    server.routes["/v1/chat/completions"] = first_breaks
    made = backend(server, concurrency=2)
    with pytest.raises(RewriteError, match="400 no"):
        made.generate(asked(*map(str, range(200))), GREEDY)
    assert len(server.seen) < 150  # a few, where nobody is busy
    assert made.generate(asked("hi"), GREEDY) == [[Answer("- hi", 3)]]


@pytest.mark.parametrize(
    ("status", "facts"),
    [
        (400, {"error": {"message": TOO_LONG, "type": "BadRequestError", "code": 400}}),
        (400, {"object": "error", "message": TOO_LONG}),
        (400, {"error": {"message": "the request exceeds the available context size, try increasing it"}}),
        (413, {"error": {"message": "prompt is too long: 200001 tokens > 200000 maximum"}}),
    ],
)
def test_a_prompt_that_is_too_long_does_not_end_the_batch(server: Server, status: int, facts: Any) -> None:
    def picky(body: dict[str, Any]) -> Reply:
        return (status, facts, {}) if "long" in body["messages"][-1]["content"] else echo(body)

    server.routes["/v1/chat/completions"] = picky
    made = backend(server)
    assert made.generate(asked("hi", "long", "ho"), GREEDY) == [[Answer("- hi", 3)], [], [Answer("- ho", 3)]]
    rewriter = Rewriter(load_template("needs"), made)
    rewrites = rewriter.sample(
        [RewriteRequest("hi"), RewriteRequest("a long story")], Sampling(temperature=1.0, answers=2)
    )
    assert [[rewrite.status for rewrite in found] for found in rewrites] == [["rewritten"] * 2, ["too-long"] * 2]
    assert rewrites[0][0].lines == ("hi",)
    assert rewriter.rewrite([RewriteRequest("a long story")])[0].status == "too-long"


def test_candidates_are_cut_where_only_the_server_knows_how_long_is_too_long(server: Server) -> None:
    def small(body: dict[str, Any]) -> Reply:
        shown = body["messages"][-1]["content"].count("tool")
        return error(400, TOO_LONG) if shown > 3 or "epic" in body["messages"][-1]["content"] else echo(body)

    server.routes["/v1/chat/completions"] = small
    template = replace(load_template("candidates"), user="{utterance}\n{candidates}")
    tools = tuple(f"tool {number}" for number in range(8))
    rewriter = Rewriter(template, backend(server), GREEDY)
    found = rewriter.rewrite(
        [
            RewriteRequest("hello", tools),
            RewriteRequest("hello", tools[:2]),
            RewriteRequest("an epic", tools),
            RewriteRequest("hi"),
        ]
    )
    assert [(each.status, each.cut) for each in found[:2]] == [("rewritten", 6), ("rewritten", 0)]
    assert [each.status for each in found[2:]] == ["too-long", "rewritten"]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (error(401, f"Incorrect API key provided: {KEY}."), r"401 .*provided: \*\*\*.*\$OPENAI_API_KEY"),
        (error(403, "not yours"), r"403 not yours.*\$OPENAI_API_KEY"),
        (error(404, "The model `tiny` does not exist."), "404 The model `tiny` does not exist.*name, tiny"),
        (error(400, "unknown field `seed`"), "400 unknown field `seed`"),
        ((422, {"detail": [{"msg": "Field required"}]}, {}), "422 .*Field required"),
        ((301, b"", {"Location": "/elsewhere"}), "301"),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(server: Server, reply: Reply, said: str) -> None:
    server.routes["/v1/chat/completions"] = lambda body: reply
    with pytest.raises(RewriteError, match=said) as caught:
        backend(server).generate(asked("hi"), GREEDY)
    assert len(server.seen) == 1
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("facts", [b"<html>hello</html>", [], {}, {"choices": []}, {"choices": [{"text": "x"}]}, "hi"])
def test_what_is_no_answer_is_not_taken_for_one(server: Server, facts: Any) -> None:
    server.routes["/v1/chat/completions"] = lambda body: (200, facts, {})
    with pytest.raises(BackendDown, match="does not answer as an OpenAI server does"):
        backend(server).generate(asked("hi"), GREEDY)


def test_the_key_is_in_no_message_and_no_log(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    # Longer than what is quoted, so that the cut goes through the key.
    server.routes["/v1/chat/completions"] = lambda body: (500, (f"{'x' * 290} {KEY} " * 3).encode(), {})
    with pytest.raises(BackendDown) as caught:
        backend(server, retries=0).generate(asked("hi"), GREEDY)
    assert KEY[:6] not in str(caught.value)
    assert KEY not in caplog.text
    assert KEY not in repr(vars(backend(server)))


def test_without_a_key_none_is_sent(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    backend(server).generate(asked("hi"), GREEDY)
    assert "Authorization" not in server.seen[0][2]
    monkeypatch.setenv("OTHER_KEY", "other\n")
    backend(server, key_variable="OTHER_KEY").generate(asked("hi"), GREEDY)
    assert server.seen[1][2]["Authorization"] == "Bearer other"


@pytest.mark.parametrize(
    "url", ["http://me:secret@localhost/v1", "http://", "http://host:port/v1", "http://h/v1?key=secret"]
)
def test_an_url_that_cannot_be_or_holds_a_secret_is_refused(url: str) -> None:
    with pytest.raises(RewriteError, match="OPENAI_API_KEY") as caught:
        ServerBackend(ServerSettings(url, "tiny"))
    assert "secret" not in str(caught.value)


def test_a_key_that_is_none_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("ключ", "two\nlines"):
        monkeypatch.setenv("OPENAI_API_KEY", bad)
        with pytest.raises(RewriteError, match="OPENAI_API_KEY") as caught:
            backend(server)
        assert bad not in str(caught.value)


def test_the_context_is_what_is_set_or_what_the_server_says(server: Server) -> None:
    assert backend(server, context=99).context == 99
    assert server.seen == []
    made = backend(server)
    assert (made.context, made.context) == (None, None)
    assert len(server.requests("/v1/models")) == 1
    models = [{"id": "base", "max_model_len": 64}, {"id": "tiny", "max_model_len": None, "parent": "base"}]
    server.routes["/v1/models"] = lambda body: (200, {"data": models}, {})
    assert backend(server).context == 64
    server.routes["/v1/models"] = lambda body: (200, {"data": [{"id": "tiny", "object": "model"}]}, {})
    assert backend(server).context is None
    server.routes["/v1/models"] = lambda body: error(500, "boom")
    with pytest.raises(BackendDown):
        _ = backend(server, retries=0).context


def test_tokens_are_counted_where_the_server_can(server: Server) -> None:
    def tokenize(body: dict[str, Any]) -> Reply:
        words = len(body["messages"][-1]["content"].split())
        return error(400, TOO_LONG) if words > 64 else (200, {"count": words, "tokens": []}, {})

    server.routes["/tokenize"] = tokenize
    made = backend(server, context=64)
    assert made.count([]) == []
    assert made.count(asked("a b c", "d", "x " * 65, "e f")) == [3, 1, 65, 2]
    asks = [RewriteRequest("hi", ("a tool",)), RewriteRequest("x " * 65, ("a tool",))]
    rewrites = Rewriter(load_template("candidates"), made, GREEDY).rewrite(asks)
    assert [rewrite.status for rewrite in rewrites] == ["rewritten", "too-long"]
    assert len(server.requests()) == 1, "what is too long is not asked"


@pytest.mark.parametrize(
    "reply", [None, (200, {"tokens": [1, 2]}, {}), error(400, "what?")], ids=["404", "other", "400"]
)
def test_where_it_cannot_it_is_tried_once(server: Server, reply: Reply | None) -> None:
    if reply:
        server.routes["/tokenize"] = lambda body: reply
    made = backend(server, context=64)
    assert made.count(asked("a", "b", "c")) is None
    assert made.count(asked("a")) is None
    assert len(server.requests("/tokenize")) == 1


def test_an_adapter_is_loaded_into_the_server(server: Server, tmp_path: Path) -> None:
    adapter = tmp_path / "mine"
    adapter.mkdir()
    with pytest.raises(RewriteError, match="not a LoRA adapter"):
        backend(server, adapter)
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    with pytest.raises(RewriteError, match=r"404 Not Found.*VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        backend(server, adapter)
    server.routes["/v1/load_lora_adapter"] = lambda body: error(500, "size of tensor a must match tensor b")
    with pytest.raises(RewriteError, match="size of tensor"):
        backend(server, adapter)
    assert len(server.requests("/v1/load_lora_adapter")) == 2

    server.routes["/v1/load_lora_adapter"] = lambda body: (200, b"Success", {})
    backend(server, adapter).generate(asked("hi"), GREEDY)
    body = server.requests("/v1/load_lora_adapter")[-1]
    assert body["lora_path"] == str(adapter)
    assert body["lora_name"].startswith("mine-")
    assert server.requests()[-1]["model"] == body["lora_name"]
    # Once more: the server has it already. Trained on: other weights are another adapter.
    server.routes["/v1/load_lora_adapter"] = lambda body: error(400, "The lora adapter has already been loaded.")
    backend(server, adapter)
    assert server.requests("/v1/load_lora_adapter")[-1] == body
    (adapter / "adapter_model.safetensors").write_bytes(b"other weights")
    backend(server, adapter)
    assert server.requests("/v1/load_lora_adapter")[-1]["lora_name"] != body["lora_name"]


def test_the_bar_is_there_when_asked_for(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    backend(server).generate(asked("hi"), GREEDY)
    assert capfd.readouterr() == ("", "")
    backend(server).generate(asked("hi"), GREEDY, show_progress=True)
    assert "answering" in capfd.readouterr().err


def test_a_server_needs_no_torch_here() -> None:
    code = (
        "import sys, rewrite.backends.server; print([m for m in ('torch', 'transformers', 'peft') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
