"""A generative retriever by the commands that a user has: built, searched, changed, evaluated, rewarded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from generative_toys import save_toy_model
from tiny_runs import THINGS, make_data, write

from pipelines.cli import main as cli
from pipelines.search import ToolSearch
from pipelines.train.rewards import ServedSearch
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.settings import RewriteFusion
from reward.base import RewriteAttempt
from reward.retrieval import RetrievalReward


def config(folder: Path, data: Path, **changes: Any) -> str:
    stage = {"epochs": 6, "batch_size": 4, "learning_rate": 3e-3, "max_length": 160}
    train = {"data": [{"path": str(data)}], "memorise": stage, "retrieve": stage | {"epochs": 3}, **changes}
    settings = {"kind": "toolgen", "model": str(folder / "toy"), "train": train}
    index = {"index": f"{folder}/index", "catalogue": str(data), "retrievers": {"toolgen": settings}}
    return write(folder / "index.yaml", index)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generative")
    save_toy_model(folder / "toy")
    assert cli.index(["build", config(folder, make_data(folder / "small")), "--device", "cpu"]) == 0
    return folder


def test_it_is_searched_and_told_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.index(["info", f"{folder}/index", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["tools"] == len(THINGS)
    assert facts["retrievers"]["toolgen"]["indexing"] == "atomic"
    assert cli.index(["verify", f"{folder}/index"]) == 0
    capsys.readouterr()
    assert cli.index(["search", f"{folder}/index", "rain for my trip", "-k", "3", "--json", "--device", "cpu"]) == 0
    result = json.loads(capsys.readouterr().out)["tools"]["toolgen"]
    assert len(result) == 3
    assert all(hit["tool_id"] in THINGS and hit["score"] < 0 for hit in result)
    training = json.loads(next((folder / "index").glob("toolgen-model-*/training.json")).read_text())
    assert training["stages"]["agent"] == "skipped"
    assert training["stages"]["retrieve"]["examples"] == 8


def test_it_is_evaluated_raw_and_behind_a_rewriter(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = {
        "output": f"{folder}/eval",
        "data": f"{folder}/small",
        "index": f"{folder}/index",
        "split": "dev",
        "metrics": ["recall@5", "ndcg@5", "ndcg_toolgen@5"],
        "rewriters": {"rules": {"template": "needs", "backend": {"kind": "rules"}}},
        "systems": {"raw": {"retriever": "toolgen"}, "rules": {"retriever": "toolgen", "rewriter": "rules"}},
    }
    assert cli.evaluate([write(folder / "eval.yaml", evaluation), "--device", "cpu"]) == 0
    facts = json.loads((folder / "eval" / "metrics.json").read_text())
    assert facts["systems"].keys() == {"raw", "rules"}
    assert 0 <= facts["systems"]["raw"]["ndcg@5"] <= facts["systems"]["raw"]["ndcg_toolgen@5"] <= 1


def test_it_rewards_rewrites(folder: Path, context: Context) -> None:
    search = ServedSearch(ToolSearch(Index(folder / "index", context), "toolgen"), RewriteFusion())
    reward = RetrievalReward(search, search, {"recall@5": 1.0})
    attempts = [RewriteAttempt("rain for my trip", frozenset({"rain", "maps"}), ("find rain", "find maps"))]
    assert reward(attempts)[0] in (0.0, 0.5, 1.0)


def test_what_is_added_is_found_and_trained_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = {"_id": "ferries", "title": "find_ferries", "text": "Finds ferries by harbour."}
    (folder / "more.jsonl").write_text(json.dumps(new) + "\n")
    assert cli.index(["add", f"{folder}/index", f"{folder}/more.jsonl", "--format", "beir", "--device", "cpu"]) == 0
    ask = ["search", f"{folder}/index", "ferries by harbour", "-k", "11", "--json", "--device", "cpu"]
    capsys.readouterr()
    assert cli.index(ask) == 0
    assert "ferries" in [hit["tool_id"] for hit in json.loads(capsys.readouterr().out)["tools"]["toolgen"]]
    data = folder / "small"
    (data / "corpus.jsonl").write_text((data / "corpus.jsonl").read_text() + json.dumps(new) + "\n")
    assert cli.index(["build", config(folder, data), "--resume", "--device", "cpu"]) == 0
    output = capsys.readouterr().out
    assert "toolgen, retrieve: 6 steps" in output
    assert "toolgen, agent: skipped" in output
    models = Index(folder / "index", Context(lambda reference: folder / "toy")).manifest.retrievers["toolgen"]
    book = json.loads((folder / "index" / models.model / "tools.json").read_text())
    assert book["vocab_size"] == book["base_vocab_size"] + len(THINGS) + 1
    assert len({tuple(code) for code in book["codes"].values()}) == len(THINGS) + 1


def test_mistakes_get_a_sentence(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(folder, folder / "small")
    stages = "memorise: {epochs: 0}, retrieve: {epochs: 0}"
    nothing = f"retrievers.toolgen.train={{data: [{{path: {folder}/small}}], {stages}}}"
    cases = {
        "all stages have epochs: 0": ["--set", nothing],
        "did you mean atomic": ["--set", "retrievers.toolgen.indexing=atomc"],
        "no finished index": ["--resume", "--set", f"index={tmp_path}/none"],
        "holds no": ["--set", f"retrievers.toolgen.model={tmp_path}"],
        "trained with indexing: atomic, got semantic": ["--resume", "--set", "retrievers.toolgen.indexing=semantic"],
        "trajector": ["--set", f"retrievers.toolgen.train.agent={{epochs: 1, trajectories: {tmp_path}/none.jsonl}}"],
    }
    for text, words in cases.items():
        assert cli.index(["build", path, "--device", "cpu", *words]) == 2, text
        assert text in capsys.readouterr().err
