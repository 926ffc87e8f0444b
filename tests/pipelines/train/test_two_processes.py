"""Two real processes on CPUs, launched as on two GPUs: fine-tuning and alignment with the same configs as alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from tiny_runs import ALIGNING, PLAIN, align_config, make_targets, sft_config, write

from rewrite.folder import open_rewriter
from rewrite.sft.distributed import join_processes

LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
ALGORITHMS: dict[str, dict[str, Any]] = {
    "dpo": {
        "kind": "dpo",
        "samples": {"answers": 3, "max_tokens": 6, "chunk_size": 2},
        "pairing": {"margin": 0.001, "max_pairs": 2},
    },
    "grpo": {"kind": "grpo", "answers": 2, "max_tokens": 5},
    "ppo": {"kind": "ppo", "max_tokens": 5, "minibatch_size": 2},
}
NAMES = ["sft", *ALGORITHMS]


def _told(text: str) -> str:
    """The end of what the processes said, without most of the launcher's own lament."""
    return "\n".join(line for line in text.split("\n") if "distributed/elastic" not in line)[-8000:]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def result(directory: Path, untied_lm: Path) -> list[dict[str, Any]]:
    """The results of each of two processes in all runs."""
    targets = make_targets(directory, PLAIN)
    (directory / "notes").mkdir()
    runs = [["sft", sft_config(targets, untied_lm, directory / "sft", epochs=1, evaluations=1)]]
    start = {"path": str(directory / "sft")}
    for name, algo in ALGORITHMS.items():
        once = ALIGNING | {"evaluations": 1}
        runs.append(["align", align_config(targets, start, directory / name, algo, probe_queries=4, training=once)])
    drawing: dict[str, Any] = {"output": str(directory / "pairs"), "start": start, "data": [{"targets": str(targets)}]}
    drawing |= {key: ALGORITHMS["dpo"][key] for key in ("samples", "pairing")}
    runs.append(
        ["pairs", write(directory / "pairs.yaml", drawing | {"reward": {"terms": {"recall@5": 1.0, "length": 0.5}}})]
    )
    words = [
        sys.executable,
        *LAUNCH,
        str(ROOT / "tests" / "support" / "launched.py"),
        str(directory / "notes"),
        json.dumps(runs),
    ]
    for _ in range(2):
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}"},
            check=False,
        )
        # The launcher looks for a free port and lets it go before a process takes it: another test may be faster.
        if done.returncode == 0 or "address already in use" not in done.stderr.lower():
            break
    assert done.returncode == 0, _told(done.stderr)
    return [json.loads((directory / "notes" / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_every_run_ends_with_a_rewriter(result: list[dict[str, Any]], directory: Path) -> None:
    for name in NAMES:
        folder = open_rewriter(directory / name)
        metrics = json.loads((directory / name / "metrics.json").read_text())
        # 8 examples, queries or pairs of two a query; a step has two rows of each process.
        assert metrics["training"]["steps"] == {"sft": 2, "ppo": 2, "grpo": 4}.get(name, metrics["training"]["steps"])
        assert folder.card.metrics["recall@5"] >= 0
    assert [item["codes"] for item in result] == [[0] * (len(NAMES) + 1)] * 2


def test_both_processes_end_with_the_same_weights(result: list[dict[str, Any]]) -> None:
    assert result[0]["weights"] == result[1]["weights"]
    assert len(set(result[0]["weights"].values())) == len(NAMES)


def test_the_first_process_writes_alone_but_for_its_share_of_the_samples(
    result: list[dict[str, Any]], directory: Path
) -> None:
    first, second = ({path for path in item["written"] if path.startswith(str(directory))} for item in result)
    assert any(path.endswith("metrics.json") or ".part" in path for path in first)
    other = {Path(path).name for path in second if not path.startswith(str(directory / "notes"))}
    # The library makes the checkpoints' folders in every process: each keeps its random numbers there.
    other = {name for name in other if not name.startswith("checkpoint")}
    assert other <= {"samples", "pairs", "samples-1.jsonl"}


def test_both_processes_score_answers(result: list[dict[str, Any]], directory: Path) -> None:
    for name in (*ALGORITHMS, "pairs"):
        assert all(item["scored"][name] > 0 for item in result), name
    for folder in (directory / "dpo" / "samples", directory / "pairs"):
        drawn = [(folder / f"samples-{rank}.jsonl").read_text().splitlines() for rank in (0, 1)]
        assert [len(rows) for rows in drawn] == [4, 4]


def test_a_launcher_that_starts_one_process_in_place_of_several_is_told_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")  # as `accelerate launch --cpu --num_processes 2` does
    join_processes(cpu=True)
    assert not capsys.readouterr().err
    monkeypatch.setenv("MASTER_PORT", "29500")
    join_processes(cpu=True)
    assert "trains alone; for several: `torchrun --nproc_per_node 2" in capsys.readouterr().err
