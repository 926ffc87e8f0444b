"""`rewrite-train probe|pairs|align` as a user has them, and what they say to those who ask for the impossible."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_runs import ALIGNING, PLAIN, align_config, make_targets, sft_config, write

from pipelines.cli import main as cli
from pipelines.context import make_context
from pipelines.train.rewards import RewardSettings, ToolReward
from pipelines.train.sources import AlignSource, read_align_data
from retrievers.settings import RewriteFusion
from rewrite.folder import open_rewriter
from rewrite.types import Answer

SAMPLES = {"answers": 3, "max_tokens": 6, "chunk_size": 3}
DPO = {"kind": "dpo", "samples": SAMPLES, "pairing": {"margin": 0.001}}


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    return make_targets(tmp_path_factory.mktemp("aligned"), PLAIN, hold_out_tools=0.3)


@pytest.fixture(scope="module")
def start(targets: Path, tiny_lm: Path) -> dict[str, Any]:
    """A fine-tuned policy."""
    path = sft_config(targets, tiny_lm, targets.parent / "sft", epochs=1, evaluations=1)
    assert cli.train(["sft", path, "--device", "cpu"]) == 0
    return {"path": str(targets.parent / "sft")}


@pytest.fixture(scope="module")
def dpo(targets: Path, start: dict[str, Any]) -> str:
    """The config of a run that is finished: all queries, those of held-out tools too."""
    data = [{"targets": str(targets), "split": "all"}]
    path = align_config(targets, start, targets.parent / "dpo", DPO, data=data)
    assert cli.train(["align", path, "--device", "cpu"]) == 0
    return path


def _refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one sentence with which a command refuses."""
    capsys.readouterr()
    assert cli.train([*map(str, words), "--device", "cpu"]) == 2
    error = capsys.readouterr().err.strip()
    assert "Traceback" not in error
    return error.splitlines()[-1]


def test_a_run_leaves_a_rewriter_as_fine_tuning_does(dpo: str, tmp_path: Path) -> None:
    run = Path(dpo).with_suffix("")
    folder = open_rewriter(run)
    metrics = json.loads((run / "metrics.json").read_text())
    assert folder.card.trained_by == "dpo after supervised fine-tuning"
    assert "Trained by dpo after supervised fine-tuning of" in (folder.path / "README.md").read_text()
    assert folder.card.data[0]["aligned_on"] == "all"
    assert folder.card.data[0]["searches"] == "bm25"
    assert metrics["history"][0]["step"] == 0
    assert metrics["start"]["eval_recall@5"] == metrics["history"][0]["eval_recall@5"]
    assert {"eval_seen_recall@5", "eval_unseen_recall@5"} & metrics["history"][0].keys()
    assert (run / "pairs.jsonl").is_file()
    assert json.loads((run / "probe.json").read_text())["queries"] == 8
    assert metrics["answers"] == folder.card.training["answers"] == 8 * 3
    page = (run / "report.html").read_text()
    assert "Distance from the reference" in page
    assert "<svg" in page
    assert not (folder.path / "ref").exists()
    assert cli.train(["merge", str(run), str(tmp_path / "merged")]) == 0


def test_a_finished_run_is_left_alone_and_another_config_is_refused(
    dpo: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.train(["align", dpo, "--device", "cpu", "--resume"]) == 0
    assert "was finished before; nothing was done" in capsys.readouterr().out
    assert "holds a run already" in _refused(capsys, "align", dpo)
    assert "another config" in _refused(capsys, "align", dpo, "--resume", "--set", "algo.beta=0.2")


def test_pairs_are_a_command_and_can_be_trained_on(
    targets: Path, start: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "output": str(tmp_path / "pairs"),
        "start": start,
        "data": [{"targets": str(targets), "split": "align"}],
        "samples": SAMPLES,
        "pairing": {"margin": 0.001, "max_pairs": 2},
        "reward": {"terms": {"recall@5": 1.0, "length": 0.5}},
    }
    path = write(tmp_path / "pairs.yaml", config)
    assert cli.train(["pairs", path, "--device", "cpu"]) == 0
    assert "pairs" in capsys.readouterr().out.splitlines()[-1]
    before = (tmp_path / "pairs" / "samples-0.jsonl").read_bytes()
    assert cli.train(["pairs", path, "--device", "cpu"]) == 0
    assert (tmp_path / "pairs" / "samples-0.jsonl").read_bytes() == before
    assert "samples of another config" in _refused(capsys, "pairs", path, "--set", "samples.temperature=2.0")
    algo = {"kind": "dpo", "pairs": str(tmp_path / "pairs")}
    config_path = align_config(targets, start, tmp_path / "run", algo)
    assert cli.train(["align", config_path, "--device", "cpu"]) == 0
    made = len((tmp_path / "pairs" / "pairs.jsonl").read_text().splitlines())
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["training"]["pairs"] == made
    assert metrics["answers"] == 3 * len(before.splitlines())


def test_two_rounds_each_start_where_the_last_one_ended(targets: Path, start: dict[str, Any], tmp_path: Path) -> None:
    config_path = align_config(targets, start, tmp_path / "run", DPO | {"rounds": 2, "reference": "frozen"}, queries=6)
    assert cli.train(["align", config_path, "--device", "cpu"]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    # A round that gains nothing ends the whole: the next one would begin where this one did.
    assert asked_in(tmp_path / "run" / "round-2") or metrics["kept"] == "start"
    assert not list((tmp_path / "run").glob("**/checkpoints"))
    assert open_rewriter(tmp_path / "run").card.trained_by.startswith("dpo")

    again = tmp_path / "again"  # here the first round has gained something
    shutil.copytree(tmp_path / "run" / "round-1", again / "round-1")
    shutil.copytree(tmp_path / "run" / "rewriter", again / "round-1" / "rewriter", dirs_exist_ok=True)
    config_path = align_config(targets, start, again, DPO | {"rounds": 2, "reference": "frozen"}, queries=6)
    assert cli.train(["align", config_path, "--device", "cpu", "--resume"]) == 0
    first, second = asked_in(tmp_path / "run" / "round-1"), asked_in(again / "round-2")
    assert (len(first), len(second), len(first | second)) == (3, 3, 6)  # every round has queries of its own


def asked_in(folder: Path) -> set[str]:
    """The queries of a round."""
    path = folder / "samples" / "samples-0.jsonl"
    return {json.loads(line)["id"] for line in path.read_text().splitlines()} if path.is_file() else set()


@pytest.mark.parametrize(
    ("algo", "training"),
    [
        ({"kind": "grpo", "answers": 3, "max_tokens": 5}, {"batch_size": 3}),
        ({"kind": "rloo", "answers": 3, "max_tokens": 5}, {"batch_size": 3}),
        ({"kind": "ppo", "max_tokens": 5, "minibatch_size": 2}, {"epochs": 3}),
        ({"kind": "best-of-n", "samples": SAMPLES, "margin": 0.0}, {}),
    ],
    ids=["grpo", "rloo", "ppo", "best-of-n"],
)
def test_the_other_algorithms_go_the_same_way(
    targets: Path,
    start: dict[str, Any],
    tmp_path: Path,
    algo: dict[str, Any],
    training: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the same queries and the same number of answers, by the gain over the raw query."""
    # A gain that exists: the raw queries find every tool here, so that a rewrite can only be longer.
    reward = {"terms": {"recall@5": 1.0, "length": -0.5}, "baseline": "raw"}
    more = {"queries": 4, "probe_queries": 2, "training": ALIGNING | training, "reward": reward}
    config_path = align_config(targets, start, tmp_path / "run", algo, **more)
    assert cli.train(["align", config_path, "--device", "cpu"]) == 0
    output = capsys.readouterr()
    assert "worth it?" in output.err
    assert output.err.count("estimate: ") == 2
    assert output.out.splitlines()[-1] == str(tmp_path / "run" / "rewriter")
    assert "12 answers were sampled for training" in output.out
    facts = open_rewriter(tmp_path / "run").card.training
    assert (facts["algo"]["kind"], facts["answers"], facts["reward"]["baseline"]) == (algo["kind"], 12, "raw")
    assert json.loads((tmp_path / "run" / "probe.json").read_text())["raw"] == 0


def test_the_probe_tells_and_refuses_nothing(
    targets: Path, tiny_lm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "output": str(tmp_path / "probe"),
        "start": {"base": str(tiny_lm), "template": str(targets / "template.yaml")},
        "data": [{"targets": str(targets)}],
        "samples": SAMPLES,
        "queries": 4,
    }
    assert cli.train(["probe", write(tmp_path / "probe.yaml", config), "--device", "cpu"]) == 0
    output = capsys.readouterr().out
    assert "4 queries x 3 answers" in output
    assert output.splitlines()[-1].startswith("worth it? ")
    assert json.loads((tmp_path / "probe" / "probe.json").read_text())["queries"] == 4


def test_what_would_be_in_vain_stops_before_training(
    targets: Path, start: dict[str, Any], tiny_lm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = {"reward": {"terms": {"recall@5": 1.0}, "fusion": {"raw": 1.0}}}
    for algo in (DPO, {"kind": "grpo", "answers": 2, "max_tokens": 5}):
        config_path = align_config(targets, start, tmp_path / f"flat-{algo['kind']}", algo, **flat)
        assert "no query has spread" in _refused(capsys, "align", config_path)
        assert not list((tmp_path / f"flat-{algo['kind']}").glob("**/checkpoint-*"))
    strict = make_targets(tmp_path / "strict")
    base = {"base": str(tiny_lm), "template": str(strict / "template.yaml")}
    config_path = align_config(strict, base, tmp_path / "garbled", DPO)
    assert "the majority of answers cannot be parsed" in _refused(capsys, "align", config_path)


def test_what_does_not_fit_together_is_refused(
    targets: Path, start: dict[str, Any], tiny_lm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(targets, tmp_path / "changed")
    facts = json.loads((targets / "targets.json").read_text())
    (tmp_path / "changed" / "targets.json").write_text(json.dumps(facts | {"fingerprint": "0123/bm25"}))
    config_path = align_config(tmp_path / "changed", start, tmp_path / "state", DPO)
    assert "in the state 0123/bm25" in _refused(capsys, "align", config_path)
    config_path = align_config(targets, start, tmp_path / "terms", DPO, reward={"terms": {"recal@5": 1.0}})
    assert "no term 'recal@5'" in _refused(capsys, "align", config_path)
    config_path = align_config(targets, start, tmp_path / "full", DPO)
    assert "merge it first" in _refused(capsys, "align", config_path, "--set", "training.method=full")
    config_path = align_config(targets, {"base": str(tiny_lm), "template": "needs"}, tmp_path / "template", DPO)
    assert "the policy uses the template needs" in _refused(capsys, "align", config_path)
    empty = make_targets(tmp_path / "empty", PLAIN)
    config_path = align_config(empty, start, tmp_path / "none", DPO, data=[{"targets": str(empty), "split": "align"}])
    assert "has no held-out queries" in _refused(capsys, "align", config_path)
    config_path = align_config(targets, start, tmp_path / "kind", {"kind": "ppoo"})
    assert "did you mean ppo?" in _refused(capsys, "align", config_path)


def test_the_reward_is_the_list_that_is_served_and_travels(targets: Path) -> None:
    data = read_align_data([AlignSource(str(targets), "all")], 0, 0)
    assert {query.example.id for query in data.queries} == {f"q{number}" for number in range(8)}
    settings = RewardSettings({"recall@5": 1.0, "abstain": 0.5}, RewriteFusion("weighted", 0.5))
    reward = ToolReward(data.sources, data.template, settings, make_context("cpu"))
    queries = data.queries[:3]
    answers = [Answer("NONE", 2), Answer("nothing of the kind", 5), Answer(f"find {queries[2].example.gold[0]}", 4)]
    result = reward.explain(queries, answers)
    assert result["recall@5"].tolist() == [1.0, 1.0, 1.0]
    assert result["abstain"].tolist() == [1.0, 0.0, 0.0]
    assert reward(queries, answers) == [1.5, 1.0, 1.0]
    assert pickle.loads(pickle.dumps(reward))(queries, answers) == [1.5, 1.0, 1.0]


def test_a_dead_retriever_is_no_score(targets: Path, tmp_path: Path) -> None:
    moved = tmp_path / "targets"
    shutil.copytree(targets, moved)
    facts = json.loads((moved / "targets.json").read_text())
    (moved / "targets.json").write_text(json.dumps(facts | {"index": str(tmp_path / "gone")}))
    data = read_align_data([AlignSource(str(moved))], 0, 0)
    with pytest.raises(FileNotFoundError, match="gone"):
        ToolReward(data.sources, data.template, RewardSettings(), make_context("cpu")).open()


def test_a_dry_run_prints_what_would_be_done(dpo: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.train(["align", dpo, "--dry-run", "--set", "algo.rounds=3"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["algo"]["rounds"] == 3
