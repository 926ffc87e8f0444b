"""A reranker in front of callers: server, batch job and evaluation have it alike, and say where it failed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from doubles import BM25_ONLY, plain_context
from rerankers import BEHIND_BM25, BrokenReranker, CountingReranker, write_cross_encoder
from serving import Running

from pipelines.batch.api import run
from pipelines.batch.settings import BatchConfig
from pipelines.config import parse
from pipelines.data.dataset import load_dataset
from pipelines.evaluate.run import EvalConfig, evaluate
from pipelines.rerank import loading
from pipelines.rerank.settings import RerankSettings
from retrievers.index import build
from retrievers.rerank.folder import RerankChoice

QUERY = "list invoices of a customer"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tmp_path_factory.mktemp("models") / "reranker")


@pytest.fixture
def scored_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[CountingReranker], None]:
    """Puts a model into the place of the folder's."""
    return lambda model: [
        monkeypatch.setattr(f"pipelines.{name}.load_model", lambda *_: model)
        for name in ("serve.reranking", "batch.plan", "evaluate.reranked_systems")
    ].clear()


def tool_ids(server: Running, **more: object) -> list[str]:
    [result] = server.search(QUERY, k=10, **more)["results"]
    return [tool["id"] for tool in result["tools"]]


def test_a_server_reranks(serve: Callable[..., Running], folder: Path) -> None:
    server = serve(rerank={"path": str(folder)}, min_probability=0.0)
    answer = server.search(QUERY, k=10)
    [result] = answer["results"]
    assert result["rerank"] == {"tools": 10, "weight": 1.0, "fallback": None}
    assert answer["fingerprints"]["reranker"]
    assert answer["timings_ms"]["rerank"] > 0
    assert all(0 <= tool["probability"] <= 1 for tool in result["tools"])
    first = tool_ids(server, rerank="off")
    assert set(tool_ids(server)) == set(first)
    assert tool_ids(server) != first
    long = server.search("x " * 3_900 + QUERY, k=3, deadline_ms=30_000)["results"][0]
    assert long["rerank"]["fallback"] is None
    assert len(long["tools"]) == 3
    assert len(tool_ids(server, min_probability=0.999)) < 10


def test_filters_and_tiers_hold(serve: Callable[..., Running], folder: Path) -> None:
    server = serve(rerank={"path": str(folder)}, trust={"blocked": ["provider1"], "hold": []})
    words = "list find create cancel update track get weather flight hotel order invoice customer"
    [result] = server.search(words, k=20, filters={"provider": ["provider1", "provider2"]})["results"]
    assert {tool["provider"] for tool in result["tools"]} == {"provider2"}
    assert [tool["score"] for tool in result["tools"]] == sorted((t["score"] for t in result["tools"]), reverse=True)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (BrokenReranker(), "not_finite"),
        (BrokenReranker(ConnectionError("gone")), "unavailable"),
        (BrokenReranker(RuntimeError("bug")), "failed"),
    ],
)
def test_a_failing_reranker_leaves_the_first_order(
    serve: Callable[..., Running],
    folder: Path,
    scored_by: Callable[[CountingReranker], None],
    model: CountingReranker,
    reason: str,
) -> None:
    scored_by(model)
    server = serve(rerank={"path": str(folder)})
    [result] = server.search(QUERY, k=10)["results"]
    assert result["rerank"] == {"tools": 0, "weight": None, "fallback": reason}
    assert [tool["id"] for tool in result["tools"]] == tool_ids(server, rerank="off")
    assert f'toolrewrite_not_reranked_total{{reason="{reason}"}} 1.0' in server.gateway.metrics.page().decode()


def test_a_late_reranker_leaves_the_first_order(
    serve: Callable[..., Running], folder: Path, scored_by: Callable[[CountingReranker], None]
) -> None:
    release = threading.Event()

    class Slow(CountingReranker):
        def score(self, queries, documents):  # type: ignore[no-untyped-def]
            release.wait()
            return super().score(queries, documents)

    scored_by(Slow())
    server = serve(rerank={"path": str(folder)}, deadline_ms=200)
    try:
        [result] = server.search(QUERY, k=10)["results"]
    finally:
        release.set()
    assert result["rerank"] == {"tools": 0, "weight": None, "fallback": "deadline"}
    assert len(result["tools"]) == 10


def test_mcp_says_that_the_order_is_the_first_one(
    serve: Callable[..., Running], folder: Path, scored_by: Callable[[CountingReranker], None]
) -> None:
    from pipelines.serve.keys import Caller
    from pipelines.serve.mcp.server import FoundTools, SearchTools, _search

    scored_by(BrokenReranker())
    gateway = serve(rerank={"path": str(folder)}).gateway
    answer = asyncio.run(_search(gateway, Caller("test", frozenset({"search"})), SearchTools(query=QUERY), None))
    assert isinstance(answer, FoundTools)
    assert answer.message == "the tools are in their first order: the reranker did not answer (not_finite)"


def test_a_batch_job_counts_rows_that_were_not_reranked(
    index: Path, tmp_path: Path, folder: Path, scored_by: Callable[[CountingReranker], None]
) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(QUERY) + "\n")
    config = BatchConfig(index=str(index), retriever="bm25", rerank=RerankSettings(str(folder)), min_probability=0.0)

    def do(name: str) -> tuple[dict[str, object], str]:
        summary = run(str(tmp_path / "in.jsonl"), str(tmp_path / name), config, show=False)
        return json.loads((tmp_path / name).read_text()), summary.text()

    row, text = do("good.jsonl")
    assert "not_reranked" not in row
    assert "first order" not in text
    assert all("probability" in tool for tool in row["tools"])  # type: ignore[attr-defined]
    scored_by(BrokenReranker())
    row, text = do("bad.jsonl")
    assert row["not_reranked"] == "not_finite"
    assert "1 rows in their first order, because the reranker failed" in text


def test_an_evaluation_compares_and_counts_failures(
    tmp_path: Path, folder: Path, scored_by: Callable[[CountingReranker], None]
) -> None:
    build(tmp_path / "index", load_dataset("bundled:sample").tools, BM25_ONLY, plain_context())
    facts = {"output": str(tmp_path / "run"), "data": "bundled:sample", "index": str(tmp_path / "index")}
    config = parse(EvalConfig, {**facts, "rerank": {"path": str(folder), "top": 5, "weight": 1}, "max_queries": 12})
    scored_by(CountingReranker())
    good = evaluate(config, plain_context())
    assert list(good.answers) == ["raw", "reranked"]
    summary = good.summary()
    assert summary["rerankers"]["reranked"]["failures"] == 0
    assert summary["systems"]["raw"]["recall@5"] == summary["systems"]["reranked"]["recall@5"]
    assert summary["systems"]["raw"]["recall@3"] != summary["systems"]["reranked"]["recall@3"]
    scored_by(BrokenReranker())
    failures = evaluate(config, plain_context()).summary()["rerankers"]["reranked"]["failures"]
    assert 0 < failures <= 12


def test_thresholds_are_reported_beside_a_fixed_number(tmp_path: Path, folder: Path) -> None:
    build(tmp_path / "index", load_dataset("bundled:sample").tools, BM25_ONLY, plain_context())
    systems = {"some": {"retriever": "bm25", "min_probability": 0.3}}
    facts = {"output": str(tmp_path / "run"), "data": "bundled:sample", "index": str(tmp_path / "index")}
    summary = evaluate(parse(EvalConfig, {**facts, "systems": systems, "max_queries": 30}), plain_context()).summary()
    some = summary["returned"]["some"]
    assert some["tools"] < some["fixed_tools"] <= 5
    assert some["precision"] > some["fixed_precision"]
    assert some["recall"] <= some["fixed_recall"]


def test_no_weight_means_not_asked(serve: Callable[..., Running], tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "reranker", RerankChoice("bm25", 10, 0.0))
    assert serve(rerank={"path": str(folder)}).search(QUERY)["results"][0]["rerank"] is None
    assert loading.choose(loading.find_reranker(RerankSettings(str(folder))), "bm25") == RerankChoice("bm25", 10, 0.0)
    assert BEHIND_BM25.weight == 1.0
