"""`rewrite-train` from targets to a merged rewriter, and what it says to those who ask for the impossible."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_runs import make_targets, sft_config
from transformers import AutoTokenizer

from pipelines.cli import main as cli
from pipelines.train.dev_evaluator import choose_dev, spread
from pipelines.train.run_folder import alone
from pipelines.train.sources import AlignSource, SftSource, judging, read_align_data, read_targets
from rewrite.folder import open_rewriter
from rewrite.settings import Sampling, TransformersSettings


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    return make_targets(tmp_path_factory.mktemp("lessons"))


@pytest.fixture(scope="module")
def config(targets: Path, tiny_lm: Path) -> str:
    """The config of a run that is finished."""
    path = sft_config(targets, tiny_lm, targets.parent / "run", report_to=["tensorboard"])
    assert cli.train(["sft", path, "--device", "cpu"]) == 0
    return path


def _refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one sentence with which a command refuses."""
    capsys.readouterr()
    assert cli.train([str(word) for word in words]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("rewrite-train: ")
    return error.splitlines()[-1]


def _changed(config: str, path: Path, **changes: Any) -> str:
    facts = yaml.safe_load(Path(config).read_text())
    for dotted, value in changes.items():
        directory, _, key = dotted.rpartition("__")
        (facts[directory] if directory else facts)[key] = value
    path.write_text(yaml.safe_dump(facts))
    return str(path)


def test_a_run_leaves_a_rewriter_its_card_its_figures_and_its_samples(config: str) -> None:
    run = Path(config).with_suffix("")
    folder = open_rewriter(run)
    metrics = json.loads((run / "metrics.json").read_text())
    assert "Step by step" in (run / "report.html").read_text()
    assert folder.path == run / "rewriter"
    assert folder.template.name == "short"
    assert folder.card.method == "lora"
    assert folder.card.metrics["recall@5"] == metrics["best"]
    assert [row["step"] for row in metrics["history"]] == [4, 8]
    assert metrics["training"]["examples"] == 8
    assert metrics["training"]["trained_parameters"] < metrics["training"]["parameters"]
    readme = (run / "rewriter" / "README.md").read_text()
    assert f"| recall@5 | {metrics['best']:.4f} |" in readme
    assert str(folder.card.data[0]["fingerprint"]) in readme
    assert folder.card.data[0]["searches"] == "bm25"
    assert "## step 8: recall@5" in (run / "samples.md").read_text()
    assert list((run / "tensorboard").glob("events.*"))
    assert not list(run.glob("**/checkpoints"))  # nothing goes on from them, and they are large


def test_a_used_folder_is_not_used_again(config: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "holds a run already; continue it with `--resume`" in _refused(capsys, "sft", config, "--device", "cpu")
    other = _changed(config, tmp_path / "other.yaml", training__learning_rate=0.1)
    assert "was started with another config" in _refused(capsys, "sft", other, "--device", "cpu", "--resume")
    elsewhere = _changed(config, tmp_path / "elsewhere.yaml", training__report_to=[])
    assert cli.train(["sft", elsewhere, "--device", "cpu", "--resume"]) == 0
    assert "was finished before; nothing was done" in capsys.readouterr().out


def test_a_second_process_is_kept_out_of_a_run(config: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = tmp_path / "run"
    torn = output / "checkpoints" / "checkpoint-4"  # as one looks that is being written
    torn.mkdir(parents=True)
    code = (
        "import sys, pathlib; from pipelines.train.run_folder import alone\n"
        "with alone(pathlib.Path(sys.argv[1])): print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(output)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        capsys.readouterr()
        config_path = _changed(config, tmp_path / "same.yaml", output=str(output))
        assert cli.train(["sft", config_path, "--device", "cpu", "--resume"]) == 1
        assert "another process is training in" in capsys.readouterr().err
        assert torn.is_dir()
        other.kill()
    with alone(output):  # whose holder was killed
        pass


def test_whoever_may_read_a_rewriters_card_may_read_its_weights(config: str) -> None:
    modes = {path.stat().st_mode for path in (Path(config).with_suffix("") / "rewriter").iterdir()}
    assert len(modes) == 1


def test_a_run_whose_targets_changed_is_not_resumed(
    config: str, targets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plain = targets / "train.jsonl", (targets / "train.jsonl").read_text()
    path.write_text(plain.replace("trains", "trams"))
    try:
        assert "the targets of the run in" in _refused(capsys, "sft", config, "--device", "cpu", "--resume")
    finally:
        path.write_text(plain)


def test_merge_writes_a_whole_model(
    config: str, tiny_lm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipelines.rewriters import RewriterSettings, make_rewriter

    run = Path(config).with_suffix("")
    assert cli.train(["merge", str(run), str(tmp_path / "merged")]) == 0
    settings = {"backend": TransformersSettings(dtype="float32"), "sampling": Sampling(max_tokens=8)}
    adapted, _ = make_rewriter(RewriterSettings(path=str(run), **settings), "cpu")  # type: ignore[arg-type]
    merged, facts = make_rewriter(RewriterSettings(path=str(tmp_path / "merged"), **settings), "cpu")  # type: ignore[arg-type]
    asks = [example.request for example in read_targets([SftSource(str(run.parent / "targets"))])[0][0].train]
    assert merged.rewrite(asks) == adapted.rewrite(asks)
    assert facts["method"] == "full"
    assert "exists already" in _refused(capsys, "merge", run, tmp_path / "merged")
    assert "whole model already" in _refused(capsys, "merge", tmp_path / "merged", tmp_path / "twice")
    shutil.copytree(tiny_lm, tmp_path / "other-base")
    settings_file = tmp_path / "other-base" / "config.json"
    settings_file.write_text(settings_file.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    assert "is an adapter of" in _refused(capsys, "merge", run, tmp_path / "x", "--base", tmp_path / "other-base")
    assert not (tmp_path / "x").exists()


def test_targets_that_are_missing_half_written_or_empty(
    config: str, targets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "targets"
    config_path = _changed(config, tmp_path / "sft.yaml", output=str(tmp_path / "run"), data=[{"targets": str(copy)}])
    assert "no finished targets in" in _refused(capsys, "sft", config_path)
    shutil.copytree(targets, copy)
    (copy / "targets.json").write_text('{"dataset": ')
    assert "is damaged; make the targets again" in _refused(capsys, "sft", config_path)
    (copy / "targets.json").write_text('{"dataset": "small"}')
    assert "lacks protocol; make the targets again" in _refused(capsys, "sft", config_path)
    shutil.copy(targets / "targets.json", copy)
    (copy / "train.jsonl").write_text('{"id": "q1", "utter')
    assert "train.jsonl:1: not an example" in _refused(capsys, "sft", config_path)
    shutil.copy(targets / "train.jsonl", copy)
    (copy / "dev.jsonl").write_text("")
    assert "8 training and 0 dev examples; take a data set with both" in _refused(capsys, "sft", config_path)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_trained_is_refused_before_it_starts(
    config: str, targets: Path, tiny_lm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = {"output": str(tmp_path / "run")}
    mute = tmp_path / "mute"
    shutil.copytree(tiny_lm, mute)
    tokenizer = AutoTokenizer.from_pretrained(tiny_lm)
    tokenizer.chat_template = None
    (mute / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer.save_pretrained(mute)
    config_path = _changed(config, tmp_path / "mute.yaml", base=str(mute), **run)
    assert "has no chat template" in _refused(capsys, "sft", config_path, "--device", "cpu")
    config_path = _changed(config, tmp_path / "none.yaml", training__report_to=["tensorbord"], **run)
    assert "report_to knows tensorboard" in _refused(capsys, "sft", config_path)
    config_path = _changed(config, tmp_path / "short.yaml", training__max_tokens=8, **run)
    error = _refused(capsys, "sft", config_path, "--device", "cpu")
    assert "no example fits into 8 tokens; raise training.max_tokens" in error
    facts = json.loads((targets / "targets.json").read_text())
    shutil.copytree(targets, tmp_path / "targets")
    (tmp_path / "targets" / "targets.json").write_text(json.dumps(facts | {"fingerprint": "0123/bm25"}))
    config_path = _changed(config, tmp_path / "state.yaml", data=[{"targets": str(tmp_path / "targets")}], **run)
    assert "were made with another state of" in _refused(capsys, "sft", config_path, "--device", "cpu")


def test_several_targets_are_judged_and_shown_side_by_side(targets: Path) -> None:
    sources, _ = read_targets([SftSource(str(targets)), SftSource(str(targets), 0.5)])
    assert [source.name for source in sources] == ["small", "small-2"]
    assert [len(item) for item in choose_dev(sources, 2, seed=0)] == [2, 2]
    assert choose_dev(sources, 2, seed=0) == choose_dev(sources, 2, seed=0)
    assert spread([100, 2, 50], 4) == [0, 1, 100, 102]
    assert spread([1, 1], 9) == [0, 1]


def test_a_set_that_is_left_out_teaches_nothing_and_judges_alone(
    config: str, targets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else dev, whose tools training knows, chooses a share that harms tools it does not."""
    sources, _ = read_targets([SftSource(str(targets)), SftSource(str(targets), left_out=True)])
    assert [(source.name, bool(source.train)) for source in sources] == [("small", True), ("small-2", False)]
    assert [source.name for source in judging(sources)] == ["small-2"]
    assert judging(sources[:1]) == sources[:1]
    assert [source.summary().get("left_out") for source in sources] == [None, True]
    data = read_align_data([AlignSource(str(targets), left_out=True), AlignSource(str(targets))], 0, 0)
    assert {query.source for query in data.queries} == {"small-2"}

    both = [{"targets": str(targets)}, {"targets": str(targets), "left_out": True}]
    config_path = _changed(config, tmp_path / "sft.yaml", output=str(tmp_path / "run"), data=both)
    assert cli.train(["sft", config_path, "--device", "cpu"]) == 0
    history = json.loads((tmp_path / "run" / "metrics.json").read_text())["history"]
    judged = {name for row in history for name in row if name.startswith("eval_small")}
    assert judged == {"eval_small-2_recall@5"}

    config_path = _changed(config, tmp_path / "none.yaml", output=str(tmp_path / "none"), data=both[1:])
    assert "all targets folders are left out; name one to train on" in _refused(capsys, "sft", config_path)


def test_targets_that_do_not_say_how_their_retriever_searches_are_taken_all_the_same(
    targets: Path, tmp_path: Path
) -> None:
    shutil.copytree(targets, tmp_path / "old")
    facts = json.loads((targets / "targets.json").read_text())
    assert facts.pop("searches") == "bm25"
    (tmp_path / "old" / "targets.json").write_text(json.dumps(facts))
    (new, old), _ = read_targets([SftSource(str(targets)), SftSource(str(tmp_path / "old"))])
    assert new.summary() == old.summary() | {"searches": "bm25"}


def test_targets_of_two_templates_do_not_mix(
    config: str, targets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(targets, tmp_path / "other")
    template = tmp_path / "other" / "template.yaml"
    template.write_text(template.read_text().replace("version: 1", "version: 2"))
    both = [{"targets": str(targets)}, {"targets": str(tmp_path / "other")}]
    config_path = _changed(config, tmp_path / "sft.yaml", output=str(tmp_path / "run"), data=both)
    assert "made with different templates" in _refused(capsys, "sft", config_path)


def test_a_dry_run_prints_what_would_be_done(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.train(["sft", config, "--dry-run", "--set", f"output={tmp_path}/x", "--set", "training.seed=7"]) == 0
    resolved = yaml.safe_load(capsys.readouterr().out)
    assert resolved["training"]["seed"] == 7
    assert not (tmp_path / "x").exists()
