"""The rewriter in this process, without vLLM, and the switch to a newer one."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from doubles import ModelServer, plain_context, varied_tools
from serving import Running, make_test_rewriter, rewriter, running
from waiting import until

from pipelines.rewriters import RewriterSettings, make_rewriter
from pipelines.serve.metrics import Metrics
from pipelines.serve.rewriter.manager import RewriterManager
from pipelines.serve.rewriter.settings import ServedRewriter
from retrievers.index import build
from retrievers.settings import BM25Settings, HybridSettings
from rewrite.settings import RulesSettings, Sampling, TransformersSettings
from rewrite.types import RewriteRequest

Serve = Callable[..., Running]
TEXTS = ["book me a flight", "weather in Athens tomorrow", "hi", "list invoices of a customer"]


def lines(base: Path, folder: Path) -> list[list[str]]:
    settings = RewriterSettings(path=str(folder), base=str(base), sampling=Sampling(max_tokens=8))
    return [
        list(found.lines)
        for found in make_rewriter(settings, "cpu")[0].rewrite([RewriteRequest(text) for text in TEXTS])
    ]


def config(base: Path, folder: Path, kind: str) -> dict[str, Any]:
    return {
        "rewriter": {
            "path": str(folder),
            "base": str(base),
            "sampling": {"max_tokens": 8},
            "backend": {"kind": kind},
        },
        "deadline_ms": 20_000,
        "watch_seconds": 0.1,
    }


def asked(server: Running) -> list[list[str]]:
    found = server.post("/v1/rewrite", utterance=TEXTS).json()["results"]
    return [result["rewrite"]["lines"] for result in found]


def test_it_answers_as_the_rewriter_does_and_takes_up_a_newer_one(serve: Serve, tiny_lm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rewriter"
    for seed in (1, 2):
        make_test_rewriter(tiny_lm, tmp_path / f"version-{seed}", seed)
    shutil.copytree(tmp_path / "version-1", folder)
    expected = [lines(tiny_lm, tmp_path / f"version-{seed}") for seed in (1, 2)]
    assert expected[0] != expected[1]
    server = serve(**config(tiny_lm, folder, "transformers"))
    assert asked(server) == expected[0]
    with ThreadPoolExecutor(3) as callers:
        answers = callers.map(lambda number: server.search(f"weather {number}", rewrite="on"), range(30))
        shutil.rmtree(folder)
        (tmp_path / "version-2").rename(folder)
        results = [answer["results"][0] for answer in answers]
    assert all(result["fallback"] in (None, {"reason": "unparseable"}) for result in results)
    until(lambda: asked(server) == expected[1])


def test_one_that_is_taken_back_while_somebody_waits_for_it_stays(tiny_lm: Path, tmp_path: Path) -> None:
    folder, kept = tmp_path / "rewriter", [tmp_path / "version-1", tmp_path / "version-2"]
    for seed, version in enumerate(kept):
        make_test_rewriter(tiny_lm, version, seed)
    shutil.copytree(kept[0], folder)

    def put(version: Path) -> None:
        shutil.rmtree(folder)
        shutil.copytree(version, folder)

    async def course() -> None:
        settings = ServedRewriter(
            str(folder), str(tiny_lm), sampling=Sampling(max_tokens=8), backend=TransformersSettings()
        )
        models = RewriterManager(settings, Metrics(), "cpu")
        rewriting = models.dispatcher
        await models.start()
        assert rewriting.loaded is not None
        first = rewriting.loaded.model
        rewriting.in_use[first] += 1
        put(kept[1])
        assert await models.refresh()
        assert rewriting.loaded.model != first
        put(kept[0])
        assert await models.refresh()
        assert rewriting.loaded.model == first
        assert [each.serves(first) for each in rewriting.endpoints] == [True, False, True]
        rewriting.in_use[first] -= 1
        async with asyncio.timeout(60):
            while len(rewriting.endpoints) > 1:
                await asyncio.sleep(0.01)
        await rewriting.rewrite(rewriting.loaded, RewriteRequest("book me a flight"), 60.0)
        assert models.is_ready()
        await models.close()

    asyncio.run(course())


def test_rules_answer_as_they_do_in_evaluation(serve: Serve) -> None:
    settings = RewriterSettings(template="needs", backend=RulesSettings())
    said = "Hi! Please book me a flight to Rome for 3, and then list the invoices of my last customer."
    [expected] = make_rewriter(settings)[0].rewrite([RewriteRequest(said)])
    server = serve(rewriter={"backend": {"kind": "rules"}, "fusion": {"raw": 0.6}})
    server.until_ready()
    [found] = server.search(said, rewrite="on")["results"]
    assert found["fallback"] is None
    assert found["rewrite"]["lines"] == list(expected.lines)
    assert len(expected.lines) > 1
    assert 'toolrewrite_model_up{endpoint="rules"} 1.0' in server.client.get("/metrics").text


def test_what_an_older_rewriter_said_is_not_remembered_for_a_newer_one_of_the_same_name(
    serve: Serve, model: ModelServer, tiny_lm: Path, tmp_path: Path
) -> None:
    for seed in (1, 2):
        make_test_rewriter(tiny_lm, tmp_path / f"version-{seed}", seed)
    folder = shutil.copytree(tmp_path / "version-1", tmp_path / "rewriter")
    served = config(tiny_lm, folder, "transformers")
    served["rewriter"] = {"path": str(folder), "backend": rewriter(model)["backend"]}
    server = serve(**served)
    server.until_ready()

    def state() -> tuple[str, bool]:
        found = server.post("/v1/rewrite", utterance="hi").json()
        return found["fingerprints"]["rewriter"], found["results"][0]["rewrite"]["cached"]

    (first, new), (_, known) = state(), state()
    assert (new, known) == (False, True)
    shutil.rmtree(folder)
    (tmp_path / "version-2").rename(folder)
    seen = [state()]
    until(lambda: seen[-1][0] != first or seen.append(state()))
    assert not seen[-1][1]


def test_where_vllm_is_not_installed_it_says_so_and_goes_on(
    serve: Serve, tiny_lm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pipelines.serve.rewriter.engine_choice.installed", lambda: False)
    make_test_rewriter(tiny_lm, tmp_path / "rewriter", 1)
    server = serve(**config(tiny_lm, tmp_path / "rewriter", "vllm"))
    assert "vLLM is not installed" in caplog.text
    assert server.client.get("/v1/models").json()["models"][1]["engine"] == "transformers"
    assert asked(server) == lines(tiny_lm, tmp_path / "rewriter")


def test_a_share_that_was_chosen_in_front_of_another_retriever_is_told(
    index: Path, tiny_lm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = "share of the raw query, 0.5, was chosen in front of dense, masstool, and this is bm25"
    for seed, kinds in enumerate((("dense", "masstool", "dense"), ("dense", "bm25"))):
        make_test_rewriter(tiny_lm, tmp_path / f"version-{seed}", seed, *kinds)
    folder = tmp_path / "rewriter"
    settings = {"index": str(index), "retriever": "bm25", **config(tiny_lm, folder, "transformers")}
    shutil.copytree(tmp_path / "version-0", folder)
    with running({**settings, "rewriter": {**settings["rewriter"], "fusion": {"raw": 0.9}}}) as server:
        asked(server)
    assert "was chosen in front of" not in caplog.text
    with running(settings) as server:
        asked(server)
    assert caplog.text.count(told) == 1
    caplog.clear()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "version-1", folder)
    with running(settings) as server:
        first = asked(server)
        assert "was chosen in front of" not in caplog.text
        shutil.rmtree(folder)
        (tmp_path / "version-0").rename(folder)
        until(lambda: asked(server) != first)
        until(lambda: told in caplog.text)


def test_so_is_one_of_a_retriever_that_was_exchanged_while_it_served(
    tiny_lm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, both = {"found": BM25Settings()}, HybridSettings(of=("title", "text"))
    build(tmp_path / "index", varied_tools(20), plain, plain_context())
    parts = {"title": BM25Settings(), "text": BM25Settings(), "found": both}
    build(tmp_path / "newer", varied_tools(20), parts, plain_context())
    make_test_rewriter(tiny_lm, tmp_path / "rewriter", 1, "bm25")
    settings = config(tiny_lm, tmp_path / "rewriter", "transformers")
    with running({**settings, "index": str(tmp_path / "index"), "retriever": "found"}) as server:
        asked(server)
        assert "was chosen in front of" not in caplog.text
        (tmp_path / "index").rename(tmp_path / "older")
        (tmp_path / "newer").rename(tmp_path / "index")
        until(lambda: "was chosen in front of bm25, and this is hybrid of bm25 and bm25" in caplog.text)
