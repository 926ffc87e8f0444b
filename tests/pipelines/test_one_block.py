"""The block `index`, `retriever`, `rewriter` is the same in the configs of serving, batch jobs and evaluation."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from doubles import ModelServer
from serving import running

from pipelines.cli import main as cli
from pipelines.config import parse
from pipelines.context import make_context
from pipelines.data.sample_data import sample_folder
from pipelines.data.trec import read_run
from pipelines.rewriters import RewriterSettings
from pipelines.search import ToolSearch
from pipelines.serve.rewriter.engine_choice import choose_engine
from pipelines.serve.rewriter.settings import ExternalServers, ServedRewriter
from retrievers.index import Index
from retrievers.index import manifest as manifests


@pytest.fixture
def block(tmp_path: Path) -> dict[str, Any]:
    shutil.copytree(sample_folder() / "index", tmp_path / "index")
    rewriter = {"template": "needs", "backend": {"kind": "rules"}, "fusion": {"method": "weighted", "raw": 0.4}}
    return {"index": str(tmp_path / "index"), "retriever": "auto", "rewriter": rewriter}


def test_one_block_gives_the_same_tools_in_all_three(block: dict[str, Any], tmp_path: Path) -> None:
    """Evaluation never detects, so detection is off in the others."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**block, "output": f"{tmp_path}/run", "data": "bundled:sample", "max_queries": 12}))
    assert cli.evaluate([str(path)]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run/queries.jsonl").read_text().splitlines()]
    texts = [row["text"] for row in rows]
    evaluated = {
        name: [list(read_run(tmp_path / f"run/{name}.trec")[row["_id"]].ids[:10]) for row in rows]
        for name in ("raw", "rewritten")
    }

    path.write_text(yaml.safe_dump({**block, "detect": False, "k": 10}))
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(text)}\n" for text in texts))
    assert cli.batch([f"{tmp_path}/in.jsonl", f"{tmp_path}/out.jsonl", "--config", str(path)]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    batched = [[tool["id"] for tool in row["tools"]] for row in rows]

    with running(block) as server:
        results = server.search(texts, detect="off", k=10)["results"]
        raw = server.search(texts, detect="off", rewrite="off", k=10)["results"]
    served = [[tool["id"] for tool in result["tools"]] for result in results]
    assert served == batched == evaluated["rewritten"]
    assert [[tool["id"] for tool in result["tools"]] for result in raw] == evaluated["raw"] != served


@pytest.mark.parametrize(
    ("having", "best"),
    [(("bm25",), "bm25"), (("bm25", "dense"), "dense"), (("bm25", "dense", "hybrid", "masstool"), "masstool")],
)
def test_all_commands_choose_the_same_retriever(
    having: tuple[str, ...], best: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the key `retriever`, for indexes of BM25 alone and of more."""
    index, text = shutil.copytree(sample_folder() / "index", tmp_path / "index"), "will I need a coat in Oslo tonight"
    manifest, _ = manifests.read(index)
    parts = {name: manifest.retrievers[name] for name in having}
    segments = tuple(
        replace(segment, arrays={name: arrays for name, arrays in segment.arrays.items() if name in having})
        for segment in manifest.segments
    )
    manifests.write(index, replace(manifest, retrievers=parts, segments=segments))
    [expected] = ToolSearch(Index(index, make_context("cpu")), best).search([text], 10, detect=False)

    assert cli.index(["search", str(index), text, "-k", "10", "--json"]) == 0
    searched = json.loads(capsys.readouterr().out)["tools"]
    assert {name: [tool["tool_id"] for tool in tools] for name, tools in searched.items()} == {best: list(expected.ids)}

    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"index": str(index), "detect": False}))
    (tmp_path / "in.jsonl").write_text(json.dumps(text))
    assert cli.batch([f"{tmp_path}/in.jsonl", f"{tmp_path}/out.jsonl", "--config", str(path)]) == 0
    assert [tool["id"] for tool in json.loads((tmp_path / "out.jsonl").read_text())["tools"]] == list(expected.ids)

    with running({"index": str(index)}) as server:
        [result] = server.search(text, detect="off", k=10)["results"]
    assert [tool["id"] for tool in result["tools"]] == list(expected.ids)

    config = {"index": str(index), "output": f"{tmp_path}/run", "data": "bundled:sample", "max_queries": 3}
    path.write_text(yaml.safe_dump(config))
    assert cli.evaluate([str(path)]) == 0
    facts = json.loads((tmp_path / "run/metrics.json").read_text())
    assert facts["retriever"]["fingerprint"] == Index(index, make_context("cpu")).retriever(best).fingerprint
    assert list(facts["systems"]) == ["raw"]


@pytest.mark.parametrize("kind", ["transformers", "vllm", "server", "rules"])
def test_every_backend_of_a_rewriter_can_be_served(kind: str, model: ModelServer) -> None:
    server = {"url": model.url, "model": "rewriter", "context": 512}
    named = server if kind == "server" else {"context": 512} if kind == "vllm" else {}
    source = {"base": "bundled:smollm2-135m"} if kind in ("transformers", "vllm") else {}
    block = {"template": "needs", "backend": {"kind": kind, **named}, "fusion": {"raw": 0.3}, **source}
    served, same = parse(ServedRewriter, block), parse(RewriterSettings, block)
    made = served.to_rewriter_settings()
    assert (made.fusion, made.template, made.base, made.backend.kind) == (same.fusion, "needs", same.base, kind)
    if kind == "server":
        assert choose_engine(served).backend == ExternalServers((model.url,), "rewriter", context=512)


def test_settings_that_serving_does_not_use_are_named(caplog: pytest.LogCaptureFixture) -> None:
    backend = {"kind": "server", "url": "http://127.0.0.1:1/v1", "model": "m"}
    choose_engine(parse(ServedRewriter, {"template": "needs", "backend": {**backend, "context": 512}}))
    assert caplog.messages == []
    choose_engine(parse(ServedRewriter, {"template": "needs", "backend": {**backend, "timeout": 5, "retries": 0}}))
    [message] = caplog.messages
    assert message.startswith("rewriter.backend: not used for serving: timeout, retries; set `deadline_ms`")
