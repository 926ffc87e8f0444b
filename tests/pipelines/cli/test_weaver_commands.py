"""A ToolWeaver by the commands that a user has: built, looked at, searched, changed, evaluated, served."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from generative_toys import save_toy_model
from tiny_runs import THINGS, make_data, write

from pipelines.cli import main as cli
from pipelines.report.data import CodedTool, CodeTree
from pipelines.report.tree import trees
from retrievers.index import Index
from retrievers.kind import Context


def config(folder: Path, data: Path, **changes: Any) -> str:
    stage = {"epochs": 4, "batch_size": 4, "learning_rate": 3e-3, "max_length": 160}
    train = {"data": [{"path": str(data)}], "memorise": stage, "retrieve": stage | {"epochs": 3}, **changes}
    quantiser = {"levels": 3, "codebook_size": 4, "width": 8, "steps": 60}
    settings = {"kind": "toolweaver", "model": str(folder / "toy"), "quantiser": quantiser, "train": train}
    index = {"index": f"{folder}/index", "catalogue": str(data), "retrievers": {"toolweaver": settings}}
    return write(folder / "index.yaml", index)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weaver")
    save_toy_model(folder / "toy")
    assert cli.index(["build", config(folder, make_data(folder / "small")), "--device", "cpu"]) == 0
    return folder


def codes(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, list[int]]:
    capsys.readouterr()
    assert cli.index(["tree", f"{folder}/index", "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_it_is_searched_and_told_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.index(["info", f"{folder}/index", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["retrievers"]["toolweaver"]["quantiser"]["levels"] == 3
    assert cli.index(["verify", f"{folder}/index"]) == 0
    capsys.readouterr()
    assert cli.index(["search", f"{folder}/index", "rain for my trip", "-k", "3", "--json", "--device", "cpu"]) == 0
    result = json.loads(capsys.readouterr().out)["tools"]["toolweaver"]
    assert len(result) == 3
    assert all(hit["tool_id"] in THINGS and hit["score"] < 0 for hit in result)


def test_the_tree_is_a_page_that_names_every_tool_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "tree" / "report.html"
    assert cli.index(["tree", f"{folder}/index", "--output", str(out)]) == 0
    page = unescape(out.read_text())
    for tool, path in codes(folder, capsys).items():
        assert page.count(f"<code>{'.'.join(map(str, path))}</code> <bdi>find_{tool}</bdi>") == 1
    assert "http" not in page.replace("http-equiv", "")


def test_the_tree_of_the_index_one_stands_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "index")
    assert cli.index(["tree", "."]) == 0
    page = (folder / "index-tree" / "report.html").read_text()
    assert "index: tools and their codes" in unescape(page)


def test_it_is_evaluated_and_its_tree_is_in_the_report(folder: Path) -> None:
    evaluation = {
        "output": f"{folder}/eval",
        "data": f"{folder}/small",
        "index": f"{folder}/index",
        "split": "dev",
        "metrics": ["recall@5", "ndcg@5", "ndcg_toolgen@5"],
        "systems": {"first": {"retriever": "toolweaver"}, "again": {"retriever": "toolweaver"}},
    }
    assert cli.evaluate([write(folder / "eval.yaml", evaluation), "--device", "cpu"]) == 0
    facts = json.loads((folder / "eval" / "metrics.json").read_text())
    assert 0 <= facts["systems"]["first"]["ndcg@5"] <= facts["systems"]["first"]["ndcg_toolgen@5"] <= 1
    page = (folder / "eval" / "report.html").read_text()
    assert page.count('id="codes"') == 1
    assert page.count('class="tree"') == 1  # the same index is drawn once
    assert all(f"find_{thing}" in page for thing in THINGS)


def test_what_is_added_is_found_and_trained_in_and_no_code_moves(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = codes(folder, capsys)
    new = {"_id": "ferries", "title": "find_ferries", "text": "Finds ferries by harbour."}
    (folder / "more.jsonl").write_text(json.dumps(new) + "\n")
    assert cli.index(["add", f"{folder}/index", f"{folder}/more.jsonl", "--format", "beir", "--device", "cpu"]) == 0
    capsys.readouterr()
    assert cli.index(["search", f"{folder}/index", "ferries", "-k", "11", "--json", "--device", "cpu"]) == 0
    assert "ferries" in [hit["tool_id"] for hit in json.loads(capsys.readouterr().out)["tools"]["toolweaver"]]
    added = codes(folder, capsys)
    assert {tool: path for tool, path in added.items() if tool != "ferries"} == before
    data = folder / "small"
    (data / "corpus.jsonl").write_text((data / "corpus.jsonl").read_text() + json.dumps(new) + "\n")
    assert cli.index(["build", config(folder, data), "--resume", "--device", "cpu"]) == 0
    assert "toolweaver, retrieve: 6 steps" in capsys.readouterr().out
    part = Index(folder / "index", Context(lambda reference: folder / "toy")).manifest.retrievers["toolweaver"]
    book = json.loads((folder / "index" / part.model / "tools.json").read_text())
    assert book["vocab_size"] == book["base_vocab_size"] + 12
    assert codes(folder, capsys) == added


def test_mistakes_get_a_sentence(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(folder, folder / "small")
    cases = {
        "did you mean": ["--set", "retrievers.toolweaver.quantiser.level=3"],
        "quantiser.levels must be at least 2, got 1": ["--set", "retrievers.toolweaver.quantiser.levels=1"],
        "was trained with 3 levels of 4 codes, got 3 of 8": [
            "--resume",
            "--set",
            "retrievers.toolweaver.quantiser.codebook_size=8",
        ],
        "room for 9 tools": [
            "--set",
            "retrievers.toolweaver.quantiser={levels: 2, codebook_size: 3}",
            "--set",
            f"index={tmp_path}/n",
        ],
    }
    for text, words in cases.items():
        assert cli.index(["build", path, "--device", "cpu", *words]) == 2, text
        assert text in capsys.readouterr().err
    plain = {"index": f"{tmp_path}/bm25", "catalogue": f"{folder}/small", "retrievers": {"bm25": {"kind": "bm25"}}}
    assert cli.index(["build", write(tmp_path / "bm25.yaml", plain)]) == 0
    assert cli.index(["tree", f"{tmp_path}/bm25", "--retriever", "bm25"]) == 2
    assert "has no tree of codes" in capsys.readouterr().err


def test_the_tree_nests_and_hostile_names_stay_text() -> None:
    hostile = "<script>alert(1)</script>"
    tools = (
        CodedTool("a", "weather_today", (0, 1, 2)),
        CodedTool("b", "weather_tomorrow", (0, 1, 3)),
        CodedTool("c", "train_times", (0, 2, 0)),
        CodedTool("d", hostile, (1, 0, 0)),
    )
    page = trees([CodeTree("first", tools)])
    assert "<script" not in page
    heads = re.findall(r"<summary><code>([\d.]+)</code> (\d+) tools <small>(.*?)</small>", page)
    assert [(code, count) for code, count, _ in heads] == [("0", "3"), ("0.1", "2")]
    assert "weather" in heads[1][2]
    assert page.index("weather_today") < page.index("weather_tomorrow") < page.index("train_times")
    assert trees([]) == ""
    assert page.count("<details>") == page.count("</details>") == 2
