"""`rewrite-train encoder` from data sets to an adapter that an index can name, on made-up words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from pipelines.cli.main import train
from pipelines.data.dataset import Query
from pipelines.data.dataset_writer import write_dataset
from pipelines.models import find_model
from pipelines.train.encoder.choice import score_blends
from pipelines.train.encoder.sets import load_set
from pipelines.train.encoder.settings import EncoderConfig, EncoderSource
from retrievers.dense.encoder import Encoder, fingerprint
from retrievers.errors import BadInput
from retrievers.types import Tool

WORDS = ["blorp", "zindle", "quax", "frum", "teggle", "wix"]


def write_toy(folder: Path, test: bool) -> str:
    tools = [Tool(f"t{i}", f"tool {i}", f"does {folder.name} things, number {i}") for i in range(len(WORDS))]
    openings = ("please", "get me a", "now", "the")
    queries = {
        f"{word}{i}": Query(f"{word}{i}", f"{opening} {word}", {"source": "left" if i % 2 else "right"})
        for word in WORDS
        for i, opening in enumerate(openings)
    }
    gold = {query: frozenset({f"t{WORDS.index(query[:-1])}"}) for query in queries}
    last = {query: needed for query, needed in gold.items() if query.endswith("3")}
    splits = {"train": {query: gold[query] for query in gold if not test or query not in last}}
    write_dataset(folder, tools, queries.values(), splits | ({"test": last} if test else {}), {})
    return str(folder)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    toys = {name: write_toy(folder / name, name == "one") for name in ("one", "two", "three")}
    settings = {
        "output": str(folder / "run"),
        "groups": {
            "first": [{"path": toys["one"], "licence": "MIT"}],
            "second": [{"path": toys["two"], "licence": "CC0", "where": {"source": ["left"]}}],
        },
        "judged": [{"path": toys["three"]}],
        "training": {"steps": 3, "batch_size": 4, "negatives": 1, "max_length": 16, "learning_rate": 5e-4},
        "blends": [0.0, 0.5, 1.0],
        "max_judged": 8,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder / "config.yaml"


def test_one_group_is_left_out_at_a_time_then_all_are_trained_on(
    config: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLREWRITE_CACHE", str(tmp_path / "cache"))
    run = config.parent / "run"
    assert train(["encoder", str(config), "--device", "cpu"]) == 2
    assert "run the same command with --leave-one-out first, or set `blend`" in capsys.readouterr().err
    assert train(["encoder", str(config), "--device", "cpu", "--set", "leave_out=first"]) == 0
    assert "other groups have to be left out yet" in capsys.readouterr().out
    assert train(["encoder", str(config), "--device", "cpu", "--leave-one-out"]) == 0
    streams = capsys.readouterr()
    assert "chosen blend" in streams.out
    assert streams.err.count("training the encoder: 3 steps") == 1  # the first group was not trained again
    left_out = json.loads((run / "without-first" / "metrics.json").read_text())
    assert left_out["sets"]["one"]["queries"] == len(WORDS)
    assert set(left_out["sets"]["one"]["scores"]) == {"0", "0.5", "1"}
    assert set(left_out["sets"]["one"]["scores"]["0"]) == {"dense", "hybrid"}

    command = ["encoder", str(config), "--device", "cpu", "--set", "blend=0.5"]
    assert train(command) == 0
    streams = capsys.readouterr()
    assert "base -> adapter: dense" in streams.out
    card = json.loads((run / "encoder" / "card.json").read_text())
    assert (card["base"], card["training"]["blend"]) == ("bundled:minilm", 0.5)
    assert [data["licence"] for data in card["sets"]] == ["MIT", "CC0"]
    merged = find_model(str(run / "encoder"))
    assert fingerprint(merged) != fingerprint(find_model("bundled:minilm"))
    assert Encoder(merged, 8, "cpu").queries(["a tool"]).shape == (1, 384)
    assert "three" in (run / "final" / "report.html").read_text()
    assert train(command) == 0
    assert "training the encoder" not in capsys.readouterr().err


def test_a_dry_run_prints_config_and_sizes(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(["encoder", str(config), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["training"]["steps"] == 3
    assert "# first: one, 6 tools, 16 queries, " in printed or "# first: one, 6 tools" in printed
    assert "2 trainings with --leave-one-out" in printed


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("leave_out=third", "no group 'third' beside another"),
        ("blends=[0.5]", "with 0 and 1"),
        ("judged.0.path=two", "the data set two is named twice"),
        ("groups={}", "name at least one group"),
        ("groups.second.0.where={source: [neither]}", "no query of"),
    ],
)
def test_bad_configs_are_refused_in_one_line(
    config: Path, wrong: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(["encoder", str(config), "--device", "cpu", "--set", "blend=0.5", "--set", wrong]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_judged_queries_are_test_queries_or_a_fixed_sample(config: Path) -> None:
    settings = EncoderConfig("", {"g": (EncoderSource("x"),)}, max_judged=5)
    with_test = load_set(EncoderSource(str(config.parent / "one")), settings)
    assert len(with_test.judged) == len(WORDS)
    assert not set(with_test.judged.queries) & set(with_test.training.train.queries)
    without = load_set(EncoderSource(str(config.parent / "two")), settings)
    assert len(without.judged) == 5
    assert without.judged == load_set(EncoderSource(str(config.parent / "two")), settings).judged


def test_the_best_blend_without_a_clear_loss_is_chosen() -> None:
    base, better, worse = np.zeros(100), np.ones(100), np.r_[np.zeros(90), -np.ones(10)]
    recalls = {"a": {0.0: base, 0.5: better / 2, 1.0: better}, "b": {0.0: base, 0.5: base, 1.0: worse}}
    first, *rest = score_blends(recalls, 0.005)
    assert (first.blend, first.worst) == (0.5, 0.0)
    assert [score.blend for score in rest] == [0.0, 1.0]
    assert rest[-1].clear_losses == ("b",)


def test_a_set_without_training_queries_is_refused(config: Path, tmp_path: Path) -> None:
    from pipelines.train.encoder.sets import load_sets

    settings = EncoderConfig("", {"g": (EncoderSource("x"),)}, max_queries=2)
    folder = Path(write_toy(tmp_path / "bare", True))
    (folder / "qrels" / "train.tsv").unlink()
    with pytest.raises(BadInput, match="fewer than two training queries"):
        load_sets([EncoderSource(str(folder))], settings, to_train=True)
