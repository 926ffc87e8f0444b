"""What is carried to a machine without a network arrives whole, or says that it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest
from paths import ROOT


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import offline

    monkeypatch.delitem(sys.modules, "offline")
    return offline


def packed(offline: ModuleType, work: Path, facts: dict[str, object]) -> Path:
    """A folder of a few files, cut into pieces of 400 bytes."""
    source, folder = work / "source", work / "pieces"
    (source / "deep").mkdir(parents=True)
    folder.mkdir()
    (source / "config.json").write_text("{}")
    (source / "deep/weights").write_bytes(os.urandom(2000))
    offline._cut(offline._tar(work / "whole", {".": source}), Namespace(folder=folder, piece=400), facts)
    return folder


def unpack(work: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks/offline.py"), "unpack", "pieces", *words]
    environment = {**os.environ, "HF_HOME": str(work / "hub-home")}
    return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=120)


def test_what_is_cut_is_joined_again_and_the_pieces_go(offline: ModuleType, tmp_path: Path) -> None:
    folder = packed(offline, tmp_path, {"name": "base"})
    assert json.loads((folder / "base.json").read_text())["pieces"] > 3
    assert unpack(tmp_path, "base", "home").returncode == 0
    for name in ("config.json", "deep/weights"):
        assert (tmp_path / "home" / name).read_bytes() == (tmp_path / "source" / name).read_bytes()
    assert [path.name for path in folder.iterdir()] == ["base.json"]


def test_a_piece_that_has_not_come_is_told_or_waited_for(offline: ModuleType, tmp_path: Path) -> None:
    folder = packed(offline, tmp_path, {"name": "base"})
    assert "holds nothing called bass" in unpack(tmp_path, "bass", "home").stderr
    (folder / "base-02").rename(tmp_path / "later")
    early = unpack(tmp_path, "base", "home")
    assert early.returncode == 1
    assert "not all of its" in early.stderr
    command = [sys.executable, str(ROOT / "benchmarks/offline.py"), "unpack", "pieces", "base", "home", "--wait"]
    with subprocess.Popen(command, cwd=tmp_path) as waiting:
        (tmp_path / "later").rename(folder / "base-02")
        assert waiting.wait(60) == 0
    assert (tmp_path / "home/config.json").exists()


def test_a_damaged_piece_is_refused_and_nothing_is_lost(offline: ModuleType, tmp_path: Path) -> None:
    folder = packed(offline, tmp_path, {"name": "base"})
    before = (folder / "base-01").read_bytes()
    (folder / "base-01").write_bytes(before[::-1])
    refused = unpack(tmp_path, "base", "home")
    assert refused.returncode == 1
    assert "do not make the whole" in refused.stderr
    (folder / "base-01").write_bytes(before)
    assert unpack(tmp_path, "base", "home").returncode == 0


def test_a_model_comes_to_lie_where_the_hub_would_have_put_it(
    offline: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(offline, tmp_path, {"name": "small", "hub": "somebody/Small", "gguf": False})
    assert unpack(tmp_path, "small", "home").returncode == 0
    program = "from pipelines.models import find_model; print(find_model('somebody/Small'))"
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hub-home"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert (Path(found.stdout.strip()) / "deep/weights").read_bytes() == (tmp_path / "source/deep/weights").read_bytes()


def test_results_come_back_without_weights(
    offline: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        "a/metrics.json",
        "a/queries.jsonl",
        "a/train.jsonl",
        "a/model.safetensors",
        "a/checkpoint-3/state.json",
        "a/tokenizer.json",
        "job.log",
    ):
        path = tmp_path / "runs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("told")
    (tmp_path / "runs/huge.json").write_bytes(b" " * (offline.LARGEST_RESULT + 1))
    offline.results(Namespace(file=tmp_path / "back.tgz", runs=Path("runs")))
    with tarfile.open(tmp_path / "back.tgz") as archive:
        assert archive.getnames() == ["runs/a/metrics.json", "runs/a/queries.jsonl", "runs/job.log"]


def test_one_command_waits_for_the_pieces_and_runs_the_jobs(offline: ModuleType, tmp_path: Path) -> None:
    """A model comes while jobs run already; the project's commands are there, data too."""
    (tmp_path / "project").mkdir()
    base, model = tmp_path / "base", tmp_path / "model"
    for part, facts in ((base, {"name": "base"}), (model, {"name": "small", "hub": "somebody/Small", "gguf": False})):
        part.mkdir()
        packed(offline, part, facts)
    (base / "pieces/small.json").write_bytes((model / "pieces/small.json").read_bytes())
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text(
        "small: {run: hf download somebody/Small, gigabytes: 0}\n"
        "told: {run: rewrite-eval --help > help.txt && test -e data, gigabytes: 0}\n"
        "after: {run: test -e help.txt, needs: [small, told]}\n"
    )
    program = [sys.executable, str(ROOT / "benchmarks/offline.py"), "work"]
    words = [str(base / "pieces"), str(tmp_path / "home"), str(jobs), "--state", "state"]
    environment = {key: value for key, value in os.environ.items() if key != "HF_HOME"} | {"PYTHONPATH": str(ROOT)}
    project = tmp_path / "project"
    (tmp_path / "home/data").mkdir(parents=True)
    (project / "data").symlink_to(tmp_path / "gone")
    with subprocess.Popen([*program, *words], cwd=project, env=environment) as running:
        for piece in sorted((model / "pieces").glob("small-*")):
            piece.rename(base / "pieces" / piece.name)
        assert running.wait(120) == 0
    assert "rewrite-eval" in (project / "help.txt").read_text()
    assert json.loads((project / "state/after.end").read_text())["code"] == 0
    assert (tmp_path / "home/hub/hub/models--somebody--Small/refs/main").exists()
    jobs.write_text("small: {run: hf download somebody/Small}\nnone: {run: hf download somebody/None}\n")
    (project / "state/small.end").unlink()
    again = subprocess.run(
        [*program, *words], cwd=project, env=environment, capture_output=True, text=True, timeout=120
    )
    assert again.returncode == 1
    assert "small: ended" in again.stdout  # it lay there already
    assert "not done: none" in again.stdout
    assert "holds nothing called none" in (project / "state/none.log").read_text()


def test_a_list_that_is_none_is_refused_before_any_piece_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("a: {run: 'true', needs: [b]}")
    words = ["work", "pieces", "home", "jobs.yaml", "--state", "state"]
    program = [sys.executable, str(ROOT / "benchmarks/offline.py"), *words]
    refused = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (refused.returncode, refused.stderr) == (1, "jobs.yaml: a needs b, which is not in the list\n")
