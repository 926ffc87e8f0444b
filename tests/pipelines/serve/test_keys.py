"""Keys, scopes, rate limits, and configs that let no caller or every caller in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from doubles import ModelServer
from serving import Running, rewriter
from waiting import PATIENCE, until

from pipelines.cli import main as cli
from pipelines.config import ConfigError, parse
from pipelines.serve.errors import Refusal
from pipelines.serve.http.dependencies import CANNOT_START
from pipelines.serve.keys import Caller, Gate, digest, make_key
from pipelines.serve.settings import KeySettings, ServeConfig

Serve = Callable[..., Running]


def entry(key: str, *scopes: str, **more: Any) -> dict[str, Any]:
    return {"name": "-".join(scopes), "sha256": digest(key), "scopes": list(scopes), **more}


def test_each_scope_opens_its_routes_and_no_others(serve: Serve) -> None:
    keys = {scope: make_key()[0] for scope in ("search", "write", "admin")}
    server = serve(anonymous=[], admin=True, keys=[entry(key, scope) for scope, key in keys.items()])
    asks = {
        "search": ("POST", "/v1/search", {"utterance": "hi"}),
        "write": ("PUT", "/v1/tools/coat", {"name": "coat"}),
        "admin": ("POST", "/v1/admin/import", {"url": "https://example.com/"}),
    }
    for scope, (method, path, body) in asks.items():
        for held, key in keys.items():
            got = server.client.request(method, path, json=body, headers={"Authorization": f"Bearer {key}"})
            allowed = {"search": 200, "write": 200, "admin": 403}[scope]  # no host may be imported from
            assert got.status_code == (allowed if held == scope else 403)
            if scope == held == "admin":
                assert "host" in got.json()["error"]["message"]
        assert server.client.request(method, path, json=body).status_code == 401
        assert server.client.request(method, path, json=body, headers={"X-API-Key": keys[scope]}).status_code != 401
    assert server.client.get("/healthz").status_code == 200
    assert server.client.get("/metrics").status_code == 401


def test_the_cause_of_a_failed_start_is_not_for_every_key(serve: Serve) -> None:
    """The error text of vLLM names paths and options of the server."""
    cause = "ValueError: no config.json in /srv/models/private"
    keys = {scopes: make_key()[0] for scopes in (("search",), ("search", "write"), ("admin", "search"))}
    rules = {"template": "needs", "backend": {"kind": "rules"}}
    server = serve(anonymous=["search"], keys=[entry(key, *scopes) for scopes, key in keys.items()], rewriter=rules)
    assert server.gateway.rewriter is not None
    for path in ("/v1/models", "/v1/about"):
        server.gateway.rewriter.dispatcher.failure = ""
        assert server.client.get(path).json()["models"][1]["error"] is None
        server.gateway.rewriter.dispatcher.failure = cause
        headers = [{}, *({"X-API-Key": key} for key in keys.values())]
        errors = [server.client.get(path, headers=header).json()["models"][1]["error"] for header in headers]
        assert errors == [CANNOT_START, CANNOT_START, cause, cause]


def test_admin_routes_are_off_by_default(serve: Serve) -> None:
    server = serve(anonymous=["search", "write", "admin"])
    assert server.post("/v1/admin/reload").status_code == 404
    assert server.post("/v1/admin/import", url="https://example.com/").status_code == 404
    open_one = serve(anonymous=["search", "write", "admin"], admin=True)
    assert open_one.client.post("/v1/admin/reload", json={}).json()["models"][0]["role"] == "retriever"


def stop_the_clock(server: Running, key: str | None) -> None:
    """No share comes back to this caller, however long a test takes."""
    caller = server.gateway.gate.admit(f"Bearer {key}" if key else None, None)
    now = caller.clock()
    caller.clock = lambda: now


def together(server: Running, model: ModelServer, callers: int, refused: int) -> Sequence[httpx.Response]:
    """Their answers, where the model answers nobody before so many were refused."""
    enough, responses = threading.Event(), list[httpx.Response]()
    model.manners = lambda *_: enough.wait(PATIENCE) and None
    with ThreadPoolExecutor(callers) as pool:
        for number in range(callers):
            pool.submit(lambda number=number: responses.append(server.post("/v1/search", utterance=f"hi {number}")))  # type: ignore[misc]
        try:
            until(lambda: len(responses) >= refused)
        finally:
            enough.set()
    return responses


def test_a_key_has_a_share_of_each_minute_and_of_the_moment(serve: Serve, model: ModelServer) -> None:
    key = make_key()[0]
    server = serve(anonymous=[], keys=[entry(key, "search", per_minute=10, concurrent=2)], rewriter=rewriter(model))
    server.until_ready()
    stop_the_clock(server, key)
    server.client.headers["Authorization"] = f"Bearer {key}"
    responses = together(server, model, 4, refused=2)
    assert [response.status_code for response in responses] == [429, 429, 200, 200]
    assert server.post("/v1/search", utterance=["hi"] * 8, rewrite="off").status_code == 200
    refused = server.post("/v1/search", utterance="hi", rewrite="off")
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "6"


def test_a_key_has_tokens_of_the_rewriter_per_minute(serve: Serve, model: ModelServer) -> None:
    key = make_key()[0]
    server = serve(anonymous=["search"], keys=[entry(key, "search", tokens_per_minute=500)], rewriter=rewriter(model))
    server.until_ready()
    stop_the_clock(server, key)

    def ask(text: str, **headers: str) -> str | None:
        response = server.client.post("/v1/search", json={"utterance": text}, headers=headers)
        [result] = response.json()["results"]
        assert result["tools"]
        return result["fallback"] and str(result["fallback"]["reason"])

    own = {"Authorization": f"Bearer {key}"}
    reasons = [ask(f"weather {number}", **own) for number in range(4)]
    assert reasons[0] is None
    assert reasons[-1] == "budget"
    asked = len(model.asked)
    assert ask("weather 0", **own) is None  # cached
    assert len(model.asked) == asked
    assert ask("weather 3") is None  # of another caller


def test_callers_without_a_key_have_a_share_together(serve: Serve) -> None:
    key = make_key()[0]
    server = serve(anonymous=["search"], keys=[entry(key, "search")], limits={"anonymous_per_minute": 3})
    stop_the_clock(server, None)
    assert server.post("/v1/search", utterance=["hi", "you"]).status_code == 200
    assert server.post("/v1/search", utterance="hi").status_code == 200
    refused = server.post("/v1/search", utterance="hi")
    assert refused.status_code == 429
    assert refused.json()["error"]["message"].startswith("anonymous may send 3 per minute")
    server.client.headers["Authorization"] = f"Bearer {key}"
    assert server.post("/v1/search", utterance="hi").status_code == 200


def test_a_share_comes_back_with_time() -> None:
    now = [0.0]
    caller = Caller("a", frozenset({"search"}), per_minute=60, clock=lambda: now[0])
    caller.charge("search", 60)
    with pytest.raises(Refusal) as caught:
        caller.charge("search", 3)
    assert caught.value.retry_after == pytest.approx(3.0)
    now[0] = 3.0
    caller.charge("search", 3)
    now[0] = 1000.0
    caller.charge("search", 1000)  # more than a share: takes all of it, and is not refused for ever


def test_more_requests_than_the_server_bears_get_429(serve: Serve, model: ModelServer) -> None:
    server = serve(rewriter=rewriter(model), limits={"in_flight": 3})
    server.until_ready()
    outcomes = [
        (response.status_code, response.headers.get("Retry-After"))
        for response in together(server, model, 8, refused=5)
    ]
    assert outcomes == [(429, "1")] * 5 + [(200, None)] * 3
    assert server.client.get("/readyz").status_code == 200


def test_keys_are_known_by_their_hash_alone() -> None:
    key, hashed = make_key()
    gate = Gate([KeySettings("one", hashed), KeySettings("two", make_key()[1])], ())
    assert gate.admit(f"Bearer {key}", None).name == "one"
    assert gate.admit(None, key).name == "one"
    for wrong in (key[:-1], key + "x", hashed, "", "trw_" + "x" * 43, key.upper(), f" {key}", "ключ"):
        with pytest.raises(Refusal) as caught:
            gate.admit(f"Bearer {wrong}", None)
        assert caught.value.status == 401
        assert wrong == "" or wrong not in caught.value.message
    assert key not in repr(vars(gate))


def test_the_command_makes_a_key_that_the_config_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.serve(["key", "--scope", "search", "--scope", "write", "--name", "agent"]) == 0
    output = capsys.readouterr().out
    key = next(word for word in output.split() if word.startswith("trw_"))
    import yaml

    [made] = yaml.safe_load(output.splitlines()[-1])
    config = parse(ServeConfig, {"index": "runs/x", "keys": [made]})
    assert Gate(config.keys, ()).admit(f"Bearer {key}", None).scopes == {"search", "write"}
    assert key not in output.splitlines()[-1]


def engine(settings: dict[str, Any]) -> dict[str, Any]:
    return {"anonymous": ["search"], "rewriter": {"path": "x", "backend": settings}}


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({}, "no caller could get in"),
        ({"anonymous": ["search", "write"], "host": "0.0.0.0"}, "may only search"),
        ({"anonymous": ["serach"]}, "did you mean search?"),
        ({"keys": [{"name": "a", "sha256": "secret"}]}, "64 hexadecimal"),
        ({"anonymous": ["search"], "deadline_ms": 0}, "deadline_ms"),
        ({"anonymous": ["search"], "rewriter": {"backend": {"kind": "vllm"}}}, "needs the `path`"),
        ({"anonymous": ["search"], "index": "", "database": {}, "learn": True}, "cannot learn at once"),
        (engine({"kind": "vllm", "options": ["--host=0.0.0.0"]}), "--host"),
        (engine({"kind": "servers", "urls": ["ftp://x"], "model": "m"}), "http://"),
        (engine({"kind": "servers", "urls": [], "model": "m"}), "at least one server"),
    ],
)
def test_a_config_that_lets_nobody_or_anybody_in_is_refused(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse(ServeConfig, {"index": "runs/x", **config})
