"""Unit tests of small parts, and property tests of every parser."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from doubles import BM25_ONLY, ModelServer, plain_context, varied_tools
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.search import ToolSearch
from pipelines.serve.batcher import Batcher
from pipelines.serve.catalogue.feedback import FeedbackLog, read_feedback
from pipelines.serve.catalogue.fetch import check_url, is_public
from pipelines.serve.errors import Refusal, RewriteFailure
from pipelines.serve.formats.tool_bodies import tool_out
from pipelines.serve.http.guard import host_name
from pipelines.serve.http.tool_routes import make_tool
from pipelines.serve.keys import Gate, make_key
from pipelines.serve.rewriter.breaker import Breaker
from pipelines.serve.rewriter.cache import RewriteCache
from pipelines.serve.rewriter.endpoints import read_completion
from pipelines.serve.rewriter.prompt_budget import PromptBudget
from pipelines.serve.schemas.search import FeedbackRequest, RewriteBody, SearchRequest
from pipelines.serve.schemas.tools import ToolBody, ToolsBody
from pipelines.serve.settings import ImportRules, KeySettings
from retrievers.index import Index, build
from retrievers.types import Ranking
from rewrite.backends.server import ServerBackend
from rewrite.settings import Sampling, ServerSettings
from rewrite.template import load_template
from rewrite.types import Rewrite, RewriteRequest

NAMES = st.text() | st.sampled_from(["choices", "message", "content", "usage"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
ANY = st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode())


@given(
    ANY | JSON.map(lambda value: json.dumps({"choices": [{"message": {"content": value}}], "usage": value}).encode())
)
def test_any_body_is_an_answer_or_trouble(data: bytes) -> None:
    try:
        answers = read_completion(data, "rewriter")
    except RewriteFailure:
        return  # any other exception fails the test
    assert answers
    assert all(isinstance(answer.text, str) and answer.tokens >= 0 for answer in answers)


@pytest.mark.parametrize("kind", [SearchRequest, RewriteBody, FeedbackRequest, ToolsBody])
@given(data=JSON | st.fixed_dictionaries({"utterance": JSON}, optional={"k": JSON, "filters": JSON, "rewrite": JSON}))
def test_any_json_is_a_request_or_refused(kind: Any, data: Any) -> None:
    try:
        request = kind.model_validate(data)
    except ValidationError:
        return
    assert isinstance(request, kind)
    assert request == kind.model_validate(json.loads(request.model_dump_json(by_alias=True)))


@given(st.text(max_size=300))
def test_any_url_is_refused_unless_its_host_is_allowed(url: str) -> None:
    with pytest.raises(Refusal) as caught:
        check_url(url, ImportRules(hosts=("catalogues.example",)))
    assert caught.value.status in (403, 422)


@pytest.mark.parametrize(("told", "asked"), [("LocalHost", "localhost"), ("localhost", "LOCALHOST")])
def test_a_host_is_allowed_however_it_is_written(told: str, asked: str) -> None:
    parts, address = check_url(f"https://{asked}/tools", ImportRules(hosts=(told,), allow_private=True))
    assert (parts.host, address.is_loopback) == ("localhost", True)


@pytest.mark.parametrize(
    "address",
    "127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 0.0.0.0 100.64.0.1 224.0.0.1 ::1 fe80::1 fd00::1 "
    "::ffff:127.0.0.1 ::ffff:10.0.0.1 2002:7f00:1:: 64:ff9b::7f00:1".split(),
)
def test_no_private_address_passes_for_a_public_one(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    assert is_public(ipaddress.ip_address("93.184.216.34"))
    assert is_public(ipaddress.ip_address("2606:2800:220:1:248:1893:25c8:1946"))


@given(st.text(), st.none() | st.text())
def test_any_header_is_a_key_or_refused(authorization: str, api_key: str | None) -> None:
    with pytest.raises(Refusal) as caught:
        Gate([KeySettings("one", make_key()[1])], ("search",)).admit(authorization, api_key)
    assert caught.value.status == 401


@given(st.text())
def test_any_host_header_is_read(told: str) -> None:
    assert len(host_name(told)) <= len(told.lower()) + 1
    assert host_name("LocalHost:8080") == "localhost"
    assert host_name("[::1]:8080") == "[::1]"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(st.dictionaries(st.text(), st.text() | st.integers())), torn=st.binary(max_size=30))
def test_whole_records_come_back_whatever_is_torn(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], torn: bytes
) -> None:
    folder = tmp_path_factory.mktemp("feedback")
    log = FeedbackLog(folder)
    for record in records:
        log.append(record)
        [path] = folder.iterdir()
        with path.open("ab") as stream:
            stream.write(b'{"' + torn.replace(b"\n", b" "))  # never a whole record by itself
    kept = [{str(key): value for key, value in record.items()} for record in records]
    cleaned = json.loads(json.dumps(kept).encode("utf-8", "replace"))
    found = [record for record in read_feedback(folder) if record in cleaned]
    assert len(found) == len(records)


@given(
    st.builds(
        ToolBody,
        name=st.text(min_size=1, max_size=20).map(lambda text: "".join(filter(str.isprintable, text)).strip() or "x"),
        description=st.text(max_size=40),
        schema=st.none() | st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=3),
    )
)
def test_a_tool_is_shown_as_it_was_put(body: ToolBody) -> None:
    back = tool_out(make_tool("an id", body))
    assert (back.name, back.description, back.arguments) == (body.name, body.description, body.arguments)


def test_a_breaker_opens_tries_and_closes() -> None:
    now = [0.0]
    breaker = Breaker(2, first_pause=1.0, clock=lambda: now[0])
    asking = breaker.enter()
    breaker.failed(asking)
    assert breaker.state == "closed"
    breaker.failed(asking)
    assert (breaker.state, breaker.enter()) == ("open", 0)
    now[0] = 1.0
    probe = breaker.enter()
    assert probe
    assert not breaker.enter()  # one tries for all
    breaker.undecided(probe)
    probe = breaker.enter()
    breaker.failed(probe)
    now[0] = 2.5
    assert not breaker.enter()  # twice as long now
    now[0] = 3.0
    assert breaker.enter()
    breaker.succeeded()
    assert breaker.state == "closed"
    breaker.failed(breaker.enter())
    assert breaker.enter()  # and it begins to count anew


def test_the_cache_keeps_what_was_used_last() -> None:
    cache = RewriteCache(2)
    keys = [RewriteCache.key("m", "t", Sampling(), [{"role": "user", "content": text}]) for text in "abc"]
    assert len({*keys, RewriteCache.key("n", "t", Sampling(), [{"role": "user", "content": "a"}])}) == 4
    for key in keys[:2]:
        cache.put(key, Rewrite((key.hex(),)))
    assert cache.get(keys[0])
    cache.put(keys[2], Rewrite(("c",)))
    assert [cache.get(key) is not None for key in keys] == [True, False, True]
    off = RewriteCache(0)
    off.put(keys[0], Rewrite(("a",)))
    assert off.get(keys[0]) is None


def test_searches_that_come_together_are_searched_together(tmp_path: Path) -> None:
    build(tmp_path / "index", varied_tools(30), BM25_ONLY, plain_context())
    search = ToolSearch(Index(tmp_path / "index", plain_context()), "bm25")
    batches: list[int] = []

    def counted(depth: int, texts: Sequence[str]) -> list[Ranking]:
        batches.append(len(texts))
        return search.retrieve(texts, depth)

    async def many() -> list[Any]:
        batcher = Batcher(counted, 1, 8, 40)
        tasks = [asyncio.ensure_future(batcher.run(5, [f"weather {number}"])) for number in range(20)]
        gone = tasks.pop(7)
        gone.cancel()
        with pytest.raises(Refusal):
            await asyncio.gather(batcher.run(5, ["x"] * 30))
        found = await asyncio.gather(*tasks)
        batcher.close()
        return list(found)

    found = asyncio.run(many())
    assert found == [search.retrieve([f"weather {number}"], 5) for number in range(20) if number != 7]
    assert sum(batches) == 19
    assert len(batches) <= 5
    assert max(batches) <= 8


def test_a_failing_search_fails_those_who_asked_and_no_others() -> None:
    def broken(_: int, texts: Sequence[str]) -> list[str]:
        if "bad" in texts:
            raise OSError("gone")
        return [text.upper() for text in texts]

    async def both() -> list[Any]:
        batcher = Batcher(broken, 1, 1, 10)
        return await asyncio.gather(*(batcher.run(1, [text]) for text in ("a", "bad", "b")), return_exceptions=True)

    one, error, other = asyncio.run(both())
    assert (one, other) == (["A"], ["B"])
    assert isinstance(error, OSError)


def test_room_is_counted_only_near_the_edge(model: ModelServer) -> None:
    model.context = 1000
    template = load_template("needs")
    exact = ServerBackend(ServerSettings(model.url, "rewriter"))
    budget = PromptBudget(exact, template, 200)
    bare = len(template.render(RewriteRequest(""))[0]["content"].split())
    assert budget.surely_fits(template.render(RewriteRequest("x" * (1000 - 200 - bare - 40))))
    assert not budget.surely_fits(template.render(RewriteRequest("x" * 1000)))
    assert budget.count([template.render(RewriteRequest("one two three"))]) == [bare + 3]
