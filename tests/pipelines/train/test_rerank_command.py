"""`rewrite-train rerank` from data sets to a reranker that configs can name, on made-up words."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from killing import started
from test_encoder_command import WORDS, write_toy
from waiting import until

from pipelines.cli.main import train
from pipelines.rerank.loading import find_reranker, load_model
from pipelines.rerank.settings import RerankSettings
from pipelines.train.rerank.choice import THRESHOLDS, calibrate, choose_settings, score_settings
from pipelines.train.rerank.scored_lists import ScoredLists
from retrievers.dense.tuning import general
from retrievers.rerank.folder import open_reranker

ENCODER = {"kind": "cross-encoder", "base": "bundled:minilm", "max_length": 128, "max_tool": 48}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rerank")
    toys = {name: write_toy(folder / name, name == "one") for name in ("one", "two", "three")}
    settings = {
        "output": str(folder / "run"),
        "model": ENCODER,
        "retrievers": {"bm25": {"kind": "bm25"}},
        "fronts": ["bm25"],
        "groups": {"first": [{"path": toys["one"], "licence": "MIT"}], "second": [{"path": toys["two"]}]},
        "judged": [{"path": toys["three"]}],
        "training": {"steps": 3, "queries": 2, "candidates": 4, "learning_rate": 1e-4, "freeze": ["word_embeddings"]},
        "tops": [5],
        "max_judged": 8,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder / "config.yaml"


def test_groups_are_left_out_then_all_are_trained_on(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = config.parent / "run"
    assert train(["rerank", str(config), "--device", "cpu", "--set", "leave_out=first"]) == 0
    assert "other groups have to be left out yet" in capsys.readouterr().out
    assert train(["rerank", str(config), "--device", "cpu", "--leave-one-out"]) == 0
    streams = capsys.readouterr()
    assert "bm25, first order -> reranked:" in streams.out
    assert streams.err.count("training the reranker: 3 steps") == 1  # the first group was not trained again
    left_out = json.loads((run / "without-first" / "metrics.json").read_text())
    assert left_out["best_per_set"]["bm25"]["one"]["queries"] == len(WORDS)

    command = ["rerank", str(config), "--device", "cpu"]
    assert train(command) == 0
    assert "chosen on left-out sets" in capsys.readouterr().out
    card = open_reranker(run).card
    assert (card.kind, card.base, card.method) == ("cross-encoder", "bundled:minilm", "full")
    assert [data["name"] for data in card.data] == ["one", "two"]
    assert card.choices[0].retriever == "bm25"
    metrics = json.loads((run / "final" / "metrics.json").read_text())
    assert set(metrics["judged"]["bm25"]["three"]["metrics"]) == {"recall@5", "ndcg@5", "comp@5"}
    assert "three" in (run / "final" / "report.html").read_text()
    assert metrics["compact"]["bytes"] < 0.1 * metrics["bytes"]
    assert set(metrics["compact"]["judged"]["bm25"]) == {"three"}
    pairs = ["please blorp"], [["tool 1: blorp", "tool 2", "something else"]]
    both = (RerankSettings(str(path), engine="transformers") for path in (run, run / "compact"))
    [whole], [small] = (load_model(find_reranker(settings), "cpu").score(*pairs) for settings in both)
    assert np.allclose(whole, small, atol=5e-4)
    assert train(command) == 0
    assert "training the reranker" not in capsys.readouterr().err


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_language_model_is_trained(
    config: Path, untied_lm: Path, tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = yaml.safe_load(config.read_text())
    model = {"kind": "language-model", "base": str(untied_lm), "method": method, "max_length": 128, "max_tool": 48}
    facts |= {
        "model": model,
        "output": str(tmp_path / "run"),
        "judged": [],
        "groups": {"one": facts["groups"]["first"]},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(facts))
    assert train(["rerank", str(tmp_path / "config.yaml"), "--device", "cpu"]) == 0
    assert "chosen on dev" in capsys.readouterr().out
    parts = find_reranker(RerankSettings(str(tmp_path / "run")))
    assert (parts.folder.adapter is None) == (method == "full")
    [scores] = load_model(parts, "cpu").score(["please blorp"], [["tool 1", "tool 2"]])
    assert np.isfinite(scores).all()


def test_a_killed_run_ends_with_the_same_weights(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; from pipelines.cli.main import train; from retrievers.dense.tuning import general; "
    code += "general.SAVE_EVERY = 2; sys.exit(train(sys.argv[1:]))"
    monkeypatch.setattr(general, "SAVE_EVERY", 2)

    def command(name: str) -> list[str]:
        sets = ["leave_out=first", f"output={tmp_path / name}", "training.steps=8", "training.queries=1"]
        return ["rerank", str(config), "--device", "cpu", *(part for one in sets for part in ("--set", one))]

    def weights(name: str) -> bytes:
        return (tmp_path / name / "without-first" / "tuned" / "model.safetensors").read_bytes()

    with started([sys.executable, "-c", code, *command("killed")]) as process:
        until(lambda: (tmp_path / "killed" / "without-first" / "checkpoint.safetensors").exists(), 0.01)
        process.kill()
        process.wait()
    assert train(command("killed")) == 0
    assert train(command("whole")) == 0
    assert weights("whole") == weights("killed")


def test_a_dry_run_prints_config_and_sizes(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(["rerank", str(config), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["training"]["steps"] == 3
    assert "# first: one, 6 tools" in printed
    assert "# 3 steps and 24 pairs per training; 2 trainings with --leave-one-out" in printed


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("leave_out=third", "no group 'third' beside another"),
        ("weights=[0.5]", "with 0, got"),
        ("tops=[1]", "must be numbers from 2 to 100"),
        ("fronts=[dense]", "must name some of bm25"),
        ("judged.0.path=two", "the data set two is named twice"),
        ("groups={}", "name at least one group"),
    ],
)
def test_bad_configs_are_refused_in_one_line(
    config: Path, wrong: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(["rerank", str(config), "--device", "cpu", "--set", wrong]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def lists_with(lift: float, queries: int = 80, seed: int = 0) -> ScoredLists:
    """Lists whose one needed tool is at a random rank; the model scores it higher by `lift`."""
    rng = np.random.default_rng(seed)
    needed = np.zeros((queries, 20), dtype=bool)
    needed[np.arange(queries), rng.integers(20, size=queries)] = True
    scores = rng.normal(size=needed.shape) + lift * needed
    ones = np.ones(queries, dtype=int)
    return ScoredLists(scores, needed, ones, np.zeros(queries, dtype=int), np.array(0.0))


def test_depth_and_weight_are_chosen_with_caution() -> None:
    good, useless, harmful = lists_with(4.0), lists_with(0.0, 400, seed=1), lists_with(-4.0, seed=2)
    grid = ((0.0, 0.5, 1.0), (10, 20), 0.005)
    assert score_settings({"a": good}, *grid)[0].weight > 0
    assert score_settings({"a": good}, *grid)[0].top == 20
    assert score_settings({"a": harmful}, *grid)[0].weight == 0
    assert score_settings({"a": useless}, *grid)[0].weight == 0
    assert score_settings({"a": good, "b": harmful}, *grid)[0].weight == 0
    assert choose_settings("bm25", {"a": harmful}, *grid)[0].calibration == {}


def test_a_threshold_trades_recall_for_precision() -> None:
    calibration, figures, fixed = calibrate({"a": lists_with(6.0), "b": lists_with(5.0, seed=3)}, 20, 1.0)
    assert all(weight >= 0 for weight in (calibration.weights[0], calibration.weights[-1]))
    assert [one.min_probability for one in figures] == list(THRESHOLDS)
    tools = [one.tools for one in figures]
    assert tools == sorted(tools, reverse=True)
    middle = figures[9]
    assert (middle.precision > 2 * fixed.precision, middle.tools < 2, fixed.tools) == (True, True, 5.0)
    assert middle.recall > 0.8 * fixed.recall
    choice, _ = choose_settings("bm25", {"a": lists_with(6.0)}, (0.0, 1.0), (20,), 0.005)
    assert choice.calibrate() is not None
    assert 0 < (choice.min_probability or 0) < 1
