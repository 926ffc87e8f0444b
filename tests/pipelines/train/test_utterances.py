"""Utterances for a catalogue without labels: what is kept, what is left out and why, and a kill in between."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from doubles import ModelServer
from killing import started
from paths import ROOT

from pipelines.cli import main as cli
from pipelines.data.dataset import load_dataset
from pipelines.index.build import read_tools
from pipelines.train.utterances import generate as making
from retrievers.index import build
from retrievers.kind import Context
from retrievers.settings import BM25Settings

OPENAPI = str(ROOT / "docs/examples/leisure-openapi.yaml")


@pytest.fixture
def model() -> Iterator[ModelServer]:
    made = ModelServer(answer)
    yield made
    made.stop()


def answer(shown: str) -> str:
    """As a model might: three that are of use, one of each that is not."""
    own = " ".join(shown.split()[:8])
    lines = [f"where would I {shown.split()[0].lower()} {n} of these {shown.split()[2]}?" for n in range(3)]
    return "\n".join(f"- {line}" for line in [*lines, own, "short", "“tell me something nice about today”", "x" * 400])


@pytest.fixture
def folder(tmp_path: Path, context: Context) -> Path:
    build(tmp_path / "index", read_tools((OPENAPI,)), {"bm25": BM25Settings()}, context)
    return tmp_path


def written(folder: Path, model: ModelServer, **changes: Any) -> str:
    several = {"name": "several", "version": 1, "system": "Several.", "user": "{utterance}", "max_characters": 400}
    (folder / "several.yaml").write_text(yaml.safe_dump(several))
    writer = {
        "template": str(folder / "several.yaml"),
        "backend": {"kind": "server", "url": model.url, "model": "rewriter", "retries": 0},
        "sampling": {"temperature": 0.8, "max_tokens": 100},
    }
    config = {"output": f"{folder}/made", "index": f"{folder}/index", "retriever": "bm25", "writer": writer, "draws": 1}
    path = folder / "utterances.yaml"
    path.write_text(yaml.safe_dump(config | {"max_rank": 5, "dev_one_in": 3} | changes))
    return str(path)


def test_what_is_of_use_becomes_a_data_set(
    folder: Path, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.train(["utterances", written(folder, model)]) == 0
    spoken_text = capsys.readouterr().out
    assert "of 14 tools have an utterance" in spoken_text
    assert "figures on them flatter it" in spoken_text
    data = load_dataset(str(folder / "made"))
    assert len(data.tools) == 14
    assert set(data.gold) == {"train", "dev", "test"}
    facts = json.loads((folder / "made" / "utterances.json").read_text())
    reasons = facts["left_out"]
    assert reasons["too short"] == reasons["said of several tools"] == 14
    assert reasons["copied from the tool"] >= 10
    assert facts["kept"] + sum(reasons.values()) == facts["written"]
    assert all(query.metadata["rank"] <= 5 for query in data.queries.values())
    assert not any("“" in query.text for query in data.queries.values())
    assert not (folder / "made-drafts").exists()
    assert "Several." in model.asked[0]["messages"][0]["content"]

    capsys.readouterr()
    assert cli.train(["utterances", written(folder, model)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_bundled_template_and_what_models_put_around_an_utterance(folder: Path, model: ModelServer) -> None:
    spoken_text = [
        'A customer might ask, "where do I {} today?"',
        "I'm sorry, as an AI I cannot do that",
        "“how can we {} here”",
    ]

    def one_of(shown: str) -> str:
        assert shown.startswith("What would a customer ask for who needs this:")
        word = shown.split('"')[1].split()[0].lower()
        return spoken_text[len(model.asked) % 3].format(f"{word} {shown.split()[12]}")

    model.answer = one_of
    backend = {"kind": "server", "url": model.url, "model": "rewriter"}
    config = written(folder, model, writer={"template": "utterances", "backend": backend}, max_rank=0)
    cli.train(["utterances", config, "--set", "test_one_in=2", "--set", "dev_one_in=2"])
    facts = json.loads((folder / "made" / "utterances.json").read_text())
    assert facts["left_out"]["nothing that a user says"] >= 4
    texts = [query.text for query in load_dataset(str(folder / "made")).queries.values()]
    assert all(text.startswith(("where do I", "how can we")) for text in texts)
    assert len(texts) >= 6


def test_a_tool_that_is_named_and_one_that_is_not_found_again_are_left_out(
    folder: Path, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.answer = lambda shown: "- please call bookCourt for me now\n- nothing that anybody here offers at all"
    assert cli.train(["utterances", written(folder, model, max_tools=14)]) == 2
    spoken_text = capsys.readouterr().err
    assert "names the tool 1" in spoken_text
    assert "said of several tools" in spoken_text
    assert "a larger model writes better ones" in spoken_text
    assert spoken_text.count("\n") == 1


def test_a_killed_run_goes_on_with_what_was_written(
    folder: Path, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "CHUNK", 4)
    config = written(folder, model)

    def die_at_ten(handler: Any, body: Any) -> None:
        if len(model.asked) == 10:
            os.kill(child[0], signal.SIGKILL)

    child: list[int] = []
    code = "import sys; from pipelines.cli import main as cli; from pipelines.train.utterances import generate\n"
    code += "generate.CHUNK = 4\n"
    code += "cli.train(['utterances', sys.argv[1], '--set', 'writer.backend.concurrency=1'])"
    world = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with started([sys.executable, "-c", code, config], env=world) as process:
        child.append(process.pid)
        model.manners = die_at_ten
        assert process.wait() == -signal.SIGKILL
    model.manners = lambda handler, body: None
    assert len(list((folder / "made-drafts").glob("samples-*.jsonl"))) == 2
    before = len(model.asked)
    assert cli.train(["utterances", config, "--set", "writer.backend.concurrency=1"]) == 0
    assert len(model.asked) - before == 6  # the tools that no whole draft has
    assert len(load_dataset(str(folder / "made")).tools) == 14


def test_mistakes_are_one_sentence(folder: Path, model: ModelServer, capsys: pytest.CaptureFixture[str]) -> None:
    def complaint(**changes: Any) -> str:
        assert cli.train(["utterances", written(folder, model, **changes)]) == 2
        spoken_text = capsys.readouterr().err
        assert spoken_text.count("\n") == 1
        return spoken_text

    assert "greedy answers are all the same" in complaint(draws=2, writer={"base": "x", "template": "utterances"})
    several = {"base": "x", "template": "utterances", "sampling": {"temperature": 1.0, "answers": 9}}
    assert "leave `answers` out and set `draws`" in complaint(writer=several)
    assert "a language model writes utterances" in complaint(writer={"path": "x"})
    assert "has no retriever" in complaint(retriever="dense")
