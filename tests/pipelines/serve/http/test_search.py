"""A search over HTTP gives the results of ToolSearch, with all intermediate steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from doubles import BM25_ONLY, QUERIES, ModelServer, plain_context, varied_tools
from serving import Running, rewriter

from pipelines.context import make_context
from pipelines.search import ToolSearch
from retrievers.index import Index, build
from retrievers.settings import BM25Settings, DenseSettings, HybridSettings, RewriteFusion
from retrievers.types import Tool
from rewrite.backends.server import ServerBackend
from rewrite.rewriter import Rewriter
from rewrite.settings import ServerSettings
from rewrite.template import load_template

Serve = Callable[..., Running]
ASKED = [query for query in QUERIES if query]


def pairs(result: dict) -> list[tuple[str, float]]:
    return [(tool["id"], tool["score"]) for tool in result["tools"]]


@pytest.mark.parametrize("k", [1, 7, 150])
def test_without_a_rewriter_it_is_the_retrievers_ranking(serve: Serve, index: Path, k: int) -> None:
    found = serve().search(ASKED, k=k)
    theirs = ToolSearch(Index(index, plain_context()), "bm25").explain(ASKED, k)
    assert [pairs(result) for result in found["results"]] == [
        [(hit.tool_id, hit.score) for hit in each.ranking] for each in theirs
    ]
    assert found["fingerprints"]["index"] == Index(index, plain_context()).fingerprint
    assert {result["detection"] for result in found["results"]} == {None}
    assert set(found["timings_ms"]) == {"raw", "fuse", "total"}


def test_all_kinds_of_retrievers_answer_alike(some_tools: list[Tool], tmp_path: Path, serve: Serve) -> None:
    context = make_context("cpu")
    kinds = {"bm25": BM25Settings(), "dense": DenseSettings(), "hybrid": HybridSettings(of=("bm25", "dense"))}
    build(tmp_path / "three", some_tools, kinds, context)
    queries = ["will I need a coat", "300 kronor in euro", "ten-day-weather"]
    server = serve(index=str(tmp_path / "three"), retriever="hybrid")
    with ThreadPoolExecutor(6) as callers:  # at the same time, so that they are searched together
        found = list(callers.map(lambda query: pairs(server.search(query, k=5)["results"][0]), queries * 4))
    theirs = ToolSearch(Index(tmp_path / "three", context), "hybrid").search(queries, 5)
    assert [[tool for tool, _ in hits] for hits in found] == [
        [hit.tool_id for hit in ranking] for ranking in theirs
    ] * 4
    for hits, ranking in zip(found, theirs * 4, strict=True):  # a batch may change the last digit of a cosine
        assert [score for _, score in hits] == pytest.approx([hit.score for hit in ranking], abs=1e-5)


@pytest.mark.parametrize("template", ["needs", "candidates"])
@pytest.mark.parametrize("fusion", [{"method": "weighted", "raw": 0.3}, {"method": "interleave", "raw": 0.5}])
def test_with_a_rewriter_it_is_toolsearch_explain(
    serve: Serve, index: Path, model: ModelServer, template: str, fusion: dict
) -> None:
    model.answer = lambda prompt: "- " + "\n- ".join(["list invoices", *prompt.splitlines()[-1].split()[:2]])
    server = serve(rewriter=rewriter(model, template=template, fusion=fusion))
    server.until_ready()
    found = server.search(ASKED, k=8)
    backend = ServerBackend(ServerSettings(model.url, "rewriter"))
    search = ToolSearch(
        Index(index, plain_context()), "bm25", Rewriter(load_template(template), backend), RewriteFusion(**fusion)
    )
    for result, theirs in zip(found["results"], search.explain(ASKED, 8), strict=True):
        assert result["fallback"] is None
        assert tuple(result["rewrite"]["lines"]) == (theirs.rewrite.lines if theirs.rewrite else None)
        assert pairs(result) == [(hit.tool_id, hit.score) for hit in theirs.ranking]
        for tool in result["tools"]:
            for by in tool["found_by"]:
                ranking = theirs.raw if by["list"] == "raw" else theirs.line_rankings[int(by["list"].split()[1]) - 1]
                assert ranking.ids[by["rank"] - 1] == tool["id"]


def test_the_modes_ask_the_rewriter_or_do_not(
    serve: Serve, model: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "rewrite-serve"):
        server = serve(rewriter=rewriter(model, fusion={"raw": 1}))  # the card's way to say: better not
    assert (
        "the config left the rewriter out (fusion.raw is 1): only a request with `rewrite: on` asks it" in caplog.text
    )
    assert server.search("book me a flight")["results"][0]["not_asked"] == "card"  # also before it is up
    server.until_ready()
    reasons = {"auto": "card", "off": "off", "on": None}
    for mode, asked in (("auto", 0), ("off", 0), ("on", 1), ("on", 1)):
        [result] = server.search("book me a flight", rewrite=mode)["results"]
        assert (result["rewrite"] is not None) == (mode == "on")
        assert (result["not_asked"], result["fallback"]) == (reasons[mode], None)
        assert len(model.asked) == asked  # the second time it is remembered
    page = server.client.get("/metrics").text
    assert 'toolrewrite_rewriter_not_asked_total{reason="card"} 2.0' in page
    assert serve().search("book me a flight")["results"][0]["not_asked"] == "no_rewriter"
    assert server.search("book me a flight", rewrite="on")["results"][0]["rewrite"]["cached"]


@pytest.mark.parametrize("line", ["book me a flight", "Book me a flight!", "BOOK me, a flight."])
def test_an_echo_is_not_a_rewrite(serve: Serve, model: ModelServer, line: str) -> None:
    model.answer = lambda prompt: f"- {line}"
    server = serve(rewriter=rewriter(model))
    server.until_ready()
    [result] = server.search("book me a flight")["results"]
    assert (result["rewrite"]["status"], result["rewrite"]["lines"]) == ("echo", [line])
    assert result["fallback"] is None
    assert result["not_asked"] is None
    assert 'toolrewrite_rewrites_total{status="echo"} 1.0' in server.client.get("/metrics").text


def test_the_rewriter_is_not_asked_where_the_raw_query_is_sure(serve: Serve, model: ModelServer) -> None:
    raw = serve().search("book me a flight")["results"][0]["tools"]
    top = raw[0]["score"]
    for threshold, asked in ((top, False), (top * 1.01, True)):
        server = serve(rewriter=rewriter(model, fusion={"raw": 0.1, "skip_rewrite_above": threshold}))
        server.until_ready()
        [result] = server.search("book me a flight")["results"]
        assert (result["rewrite"] is not None) == asked
        assert result["not_asked"] == (None if asked else "confident")
        assert result["fallback"] is None
        assert (result["tools"] == raw) == (not asked)
        [forced] = server.search("book me a flight", rewrite="on")["results"]
        assert forced["rewrite"] is not None
        assert forced["tools"] != raw


def test_raw_retrieval_runs_beside_the_rewriter(serve: Serve, model: ModelServer) -> None:
    server = serve(rewriter=rewriter(model), deadline_ms=30_000)
    server.until_ready()
    searched, seen = threading.Event(), list[bool]()
    batcher = server.gateway.service.batcher
    run = batcher.run

    async def watched(*given: Any) -> Any:
        found = await run(*given)
        searched.set()
        return found

    batcher.run = watched  # type: ignore[method-assign]
    # The model does not answer before the index has.
    model.manners = lambda handler, body: seen.append(searched.wait(15))  # type: ignore[func-returns-value]
    [result] = server.search("book me a flight")["results"]
    assert seen == [True]
    assert result["fallback"] is None


def test_filters_leave_k_tools_where_there_are_as_many(serve: Serve, model: ModelServer, tmp_path: Path) -> None:
    tools = varied_tools(900)
    build(tmp_path / "many", tools, BM25_ONLY, plain_context())
    # Every tool is found, those of the first word before all others: what is asked for stands beyond place 700.
    text = "provider0 " * 9 + " ".join(f"provider{number}" for number in range(1, 7)) + " tool-001"
    for config in ({}, {"rewriter": rewriter(model)}):
        server = serve(index=str(tmp_path / "many"), **config)
        if config:
            server.until_ready()
        for filters in (
            {"provider": ["PROVIDER6"]},
            {"provider": ["provider6", "provider5"], "category": ["category2"]},
        ):
            [result] = server.search(text, k=40, filters=filters)["results"]
            assert len(result["tools"]) == 40
            assert {tool["provider"] for tool in result["tools"]} <= {name.lower() for name in filters["provider"]}
            assert {tool["category"] for tool in result["tools"]} <= {
                *filters.get("category", map("category{}".format, range(5)))
            }
        assert server.search(text, k=5, filters={"provider": ["nobody"]})["results"][0]["tools"] == []


def test_a_rewriter_that_leaves_it_alone_is_no_failure(serve: Serve, model: ModelServer) -> None:
    model.answer = lambda prompt: "NONE"
    server = serve(rewriter=rewriter(model))
    server.until_ready()
    [result] = server.search("book me a flight")["results"]
    assert (result["rewrite"]["status"], result["fallback"]) == ("none", None)


def test_rewrites_alone_and_what_answers_here(serve: Serve, model: ModelServer) -> None:
    server = serve(rewriter=rewriter(model))
    server.until_ready()
    found = server.post("/v1/rewrite", utterance=["book me a flight", "hi"]).json()
    assert [result["rewrite"]["lines"] for result in found["results"]] == [["book me a flight"], ["hi"]]
    models = server.client.get("/v1/models").json()["models"]
    assert [(each["role"], each["ready"]) for each in models] == [("retriever", True), ("rewriter", True)]
    assert serve().post("/v1/rewrite", utterance="hi").status_code == 404
    assert 'toolrewrite_rewrite_cache_total{result="miss"} 2.0' in server.client.get("/metrics").text


def test_queries_are_in_no_log_unless_wanted(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    serve().search("a very private matter")
    assert "private" not in caplog.text
    serve(log_queries=True).search("a very private matter")
    assert "a very private matter" in caplog.text
