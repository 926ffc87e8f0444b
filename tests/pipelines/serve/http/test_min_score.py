"""`min_score` over HTTP and MCP: tools that do not fit are left out, and an empty answer says why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doubles import ModelServer, plain_context, varied_tools
from mcp import Client
from serving import Running, rewriter, running

from pipelines.search import ToolSearch
from retrievers.errors import BadInput
from retrievers.index import Index, build
from retrievers.settings import BM25Settings, HybridSettings

Serve = Callable[..., Running]
POOR, GOOD = "nothing that anybody offers, in Athens", "list invoices of a customer"


def test_the_relevance_is_that_of_toolsearch_and_nothing_is_left_out_by_itself(serve: Serve, index: Path) -> None:
    search = ToolSearch(Index(index, plain_context()), "bm25")
    answers = serve().search([POOR, GOOD], k=12)["results"]
    for result, theirs in zip(answers, search.explain([POOR, GOOD], 12), strict=True):
        assert [tool["relevance"] for tool in result["tools"]] == list(theirs.relevance or ())
        assert [tool["id"] for tool in result["tools"]] == list(theirs.ranking.ids)
        assert result["nothing_fits"] is None


@pytest.mark.parametrize("format", [None, "openai", "mcp"])
def test_tools_that_do_not_fit_are_left_out(serve: Serve, format: str | None) -> None:
    server = serve()
    poor, good = (result["tools"][0]["relevance"] for result in server.search([POOR, GOOD], k=5)["results"])
    assert poor < good
    left, kept = server.search([POOR, GOOD], k=5, min_score=good, format=format)["results"]
    assert left["tools"] == []
    best = server.search(POOR, k=5)["results"][0]["tools"][0]["id"]
    message = f"no tool fits: the best, {best}, has relevance {poor:.2f}, below min_score {good:g}"
    unused = {"probability": None, "min_probability": None}
    expected = {"best": best, "relevance": poor, "min_score": good, "message": message, **unused}
    assert left["nothing_fits"] == expected
    assert len(kept["tools"]) == 5
    assert kept["nothing_fits"] is None
    if format:
        assert left["definitions"]["tools"] == []
        assert len(kept["definitions"]["tools"]) == 5
    assert "toolrewrite_nothing_fits_total 1.0" in server.client.get("/metrics").text


def test_a_named_tool_stays_and_a_filter_may_leave_nothing(serve: Serve, index: Path) -> None:
    server = serve()
    [named] = server.search("call tool-007 for me", k=3, min_score=1)["results"]
    assert (named["tools"][0]["id"], named["tools"][0]["relevance"]) == ("tool-007", 1)
    assert named["nothing_fits"] is None
    [nothing] = server.search(GOOD, min_score=0, filters={"provider": ["no such provider"]})["results"]
    assert nothing["nothing_fits"]["message"] == "no tool fits: none was found"


def test_the_server_may_set_a_threshold(serve: Serve) -> None:
    server = serve(min_score=0.99)
    assert server.search(GOOD)["results"][0]["nothing_fits"]["min_score"] == 0.99
    assert server.search(GOOD, min_score=0)["results"][0]["tools"]


@pytest.mark.parametrize("wrong", ["2", "-0.1", "NaN", "Infinity", '"0.3"', "true"])
def test_a_threshold_is_a_probability(serve: Serve, wrong: str) -> None:
    body = f'{{"utterance": "weather", "min_score": {wrong}}}'
    response = serve().client.post("/v1/search", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    message = response.json()["error"]["message"]
    assert "\n" not in message
    assert "min_score" in message or "JSON" in message


def test_a_retriever_without_calibration_says_so(serve: Serve, tmp_path: Path) -> None:
    lexical = {"bm25": BM25Settings(), "flat": BM25Settings(b=0), "both": HybridSettings(of=("bm25", "flat"))}
    build(tmp_path / "both", varied_tools(30), lexical, plain_context())
    config = {"index": str(tmp_path / "both"), "retriever": "both"}
    with pytest.raises(BadInput, match=r"min_score needs a calibrated retriever"):
        serve(**config, min_score=0.2)
    server = serve(**config)
    response = server.post("/v1/search", utterance="weather", min_score=0.2)
    assert (response.status_code, response.json()["error"]["code"]) == (422, "not_calibrated")
    assert server.search("weather")["results"][0]["tools"][0]["relevance"] is None


def test_the_sample_that_ships_is_calibrated() -> None:
    with running({"index": "bundled:sample"}) as server:
        [rain] = server.search("will it rain tomorrow", min_score=0.1)["results"]
        assert rain["tools"][0]["relevance"] >= 0.1
        assert server.search("will it rain tomorrow", min_score=1)["results"][0]["nothing_fits"] is not None


def test_a_rewrite_counts_as_well(serve: Serve, model: ModelServer) -> None:
    model.answer = lambda prompt: f"- {GOOD}"
    server = serve(rewriter=rewriter(model, fusion={"raw": 0.5}))
    server.until_ready()
    alone = server.search(POOR, rewrite="off", k=5)["results"][0]["tools"][0]["relevance"]
    both = server.search(POOR, rewrite="on", k=5)["results"][0]["tools"][0]["relevance"]
    assert both > alone


def test_an_mcp_client_reads_why_there_is_no_tool(serve: Serve) -> None:
    async def run(url: str) -> list[Any]:
        async with Client(url) as client:
            asked = [{"query": POOR, "min_score": 0.99}, {"query": GOOD}, {"query": GOOD, "min_score": 7}]
            return [await client.call_tool("search_tools", arguments) for arguments in asked]

    empty, usual, wrong = asyncio.run(run(f"{serve().url}/mcp"))
    assert empty.structured_content["tools"] == []
    assert empty.structured_content["message"].startswith("no tool fits: the best, ")
    assert (len(usual.structured_content["tools"]), usual.structured_content["message"]) == (5, None)
    assert wrong.is_error
    assert wrong.content[0].text == "min_score: Input should be less than or equal to 1"
