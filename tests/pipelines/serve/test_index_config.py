"""`rewrite-serve INDEX` takes up the rewriter beside the index, if it was made for the index's retriever."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.cli import main as cli
from pipelines.data.sample_data import sample_folder
from rewrite.folder import RewriterCard
from rewrite.template import load_template


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(sample_folder() / "index", tmp_path / "index")
    return tmp_path


def put_rewriter(folder: Path, *searches: str, raw: float = 0.6) -> None:
    """A rewriter's folder as far as it is looked at before a model is loaded."""
    folder.mkdir(parents=True)
    data = [{"dataset": "sample", "searches": label} for label in searches]
    card = RewriterCard("bundled:smollm2-135m", "0123", "lora", data=data, fusion={"raw": raw})
    (folder / "adapter_model.safetensors").touch()
    (folder / "template.yaml").write_text(load_template("needs").dump())
    (folder / "rewriter.json").write_text(json.dumps(asdict(card)))


def resolved(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.serve([*words, "--dry-run"]) == 0
    config: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return config


def test_an_index_is_served_as_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "rewrite-serve"):
        config = resolved(capsys, f"{folder}/index")
    assert (config["index"], config["retriever"], config["rewriter"]) == (f"{folder}/index", "auto", None)
    assert f"there is no rewriter in {folder}/rewriter: raw retrieval by masstool" in caplog.text


@pytest.mark.parametrize("inner", ["rewriter", "rewriter/rewriter"])  # a rewriter, or the run that wrote it
def test_its_rewriter_is_taken_up(
    folder: Path, inner: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    put_rewriter(folder / inner, "trained masstool")
    with caplog.at_level(logging.INFO, "rewrite-serve"):
        config = resolved(capsys, f"{folder}/index", "--set", "rewriter.sampling.max_tokens=48")
    assert config["rewriter"]["path"] == f"{folder}/rewriter"
    assert config["rewriter"]["sampling"]["max_tokens"] == 48
    assert config["rewriter"]["backend"] is None, "the machine decides at the start"
    assert f"the rewriter in {folder}/rewriter, trained in front of trained masstool, is used" in caplog.text
    assert resolved(capsys, f"{folder}/index", "--set", "rewriter=null")["rewriter"] is None
    assert resolved(capsys, f"{folder}/index", "--set", "rewriter.path=mine")["rewriter"]["path"] == "mine"


@pytest.mark.parametrize(
    ("searches", "retriever", "reason"),
    [
        (("dense",), "auto", "was trained in front of dense, and this is trained masstool: it is not used"),
        (("trained masstool",), "dense", "was trained in front of trained masstool, and this is dense"),
        ((), "auto", "does not name the retriever it is for"),
    ],
)
def test_one_for_another_retriever_is_not(
    folder: Path,
    searches: tuple[str, ...],
    retriever: str,
    reason: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    put_rewriter(folder / "rewriter", *searches)
    config = resolved(capsys, f"{folder}/index", "--set", f"retriever={retriever}")
    assert config["rewriter"] is None
    assert reason in caplog.text
    assert f"set rewriter.path={folder}/rewriter" in caplog.text


def test_one_without_a_share_is_not_loaded_for_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    put_rewriter(folder / "rewriter", "trained masstool", raw=1.0)
    assert resolved(capsys, f"{folder}/index")["rewriter"] is None
    assert f"dev gave the rewriter in {folder}/rewriter no share: it is not used" in caplog.text
    config = resolved(capsys, f"{folder}/index", "--set", "rewriter.fusion.raw=0.8")
    assert (config["rewriter"]["path"], config["rewriter"]["fusion"]["raw"]) == (f"{folder}/rewriter", 0.8)


def test_an_unfinished_one_is_not_used_and_a_folder_without_an_index_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "rewriter").mkdir()
    assert resolved(capsys, f"{folder}/index")["rewriter"] is None
    assert "is not a finished rewriter" in caplog.text
    assert cli.serve([str(folder)]) == 2
    assert "no finished index" in capsys.readouterr().err
    assert cli.serve([f"{folder}/index", "--set", "retriever=nothing"]) == 2
    assert "it has bm25, dense, hybrid, masstool" in capsys.readouterr().err
