"""Comparing systems over seeds: the interval knows runs and queries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pipelines.cli.main import evaluate
from pipelines.evaluate.seeds import compare_seeds, hierarchical_bootstrap, read_run


def write_run(folder: Path, after: Sequence[float], before: Sequence[float], start: str = "a", name: str = "x") -> Path:
    folder.mkdir(parents=True)
    both = {"grpo": after, "sft": before}
    facts = {
        "dataset": name,
        "protocol": "official",
        "split": "test",
        "systems": {system: {"recall@5": float(np.mean(row))} for system, row in both.items()},
        "fingerprints": {"grpo": "i", "sft": "i"},
        "fusions": {"sft": {"rewriter": "sft"}},
        "rewriters": {"sft": {"made_of": {"fingerprint": start}}},
    }
    (folder / "metrics.json").write_text(json.dumps(facts))
    rows = [
        {"_id": f"q{number}", "scores": {system: {"recall@5": row[number]} for system, row in both.items()}}
        for number in range(len(after))
    ]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_spread_is_that_of_means_over_runs_and_queries() -> None:
    """Against the formula: the variance of a mean of runs with run effects and query effects."""
    rng = np.random.default_rng(1)
    runs, queries = 4, 300
    effects = rng.normal(0, 0.1, size=(runs, 1))
    differences = effects + rng.normal(0, 0.5, size=(1, queries))
    drawn = hierarchical_bootstrap(differences, [str(run) for run in range(runs)], rounds=20_000)
    expected = effects.var(ddof=1) / runs + differences.mean(axis=0).var() / queries
    assert drawn.var() == pytest.approx(expected, rel=0.05)
    assert drawn.mean() == pytest.approx(differences.mean(), abs=0.003)


def test_runs_of_one_training_are_no_independent_evidence() -> None:
    """Three alignments of each of two trainings: the trainings decide how far the mean may move."""
    differences = np.repeat([[0.2], [-0.1]], 3, axis=0) @ np.ones((1, 50))
    nested = hierarchical_bootstrap(differences, ["a", "a", "a", "b", "b", "b"])
    apart = hierarchical_bootstrap(differences, list("abcdef"))
    assert nested.std() > 2 * apart.std()


def test_one_lucky_seed_is_not_significant_where_queries_alone_say_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    before = rng.integers(0, 2, 400).astype(float)
    lucky, unlucky = np.clip(before + 0.1, 0, 1), np.clip(before - 0.08, 0, 1)
    runs = [
        read_run(
            write_run(tmp_path / f"{seed}", after.tolist(), before.tolist(), start=str(seed)), "grpo", "sft", "recall@5"
        )
        for seed, after in enumerate([lucky, lucky, unlucky])
    ]
    [alone] = compare_seeds(runs[:1])
    [row] = compare_seeds(runs)
    assert alone.p_value < 0.01 < 0.2 < row.p_value
    assert (row.runs, row.starts, row.queries) == (3, 3, 400)


def test_data_sets_are_corrected_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = []
    for name in ("x", "y"):
        for seed in range(2):
            after = [1.0] * 30 + [0.0] * 10
            folders.append(write_run(tmp_path / f"{name}{seed}", after, [0.5] * 40, str(seed), name))
    assert evaluate(["seeds", *map(str, folders), "--system", "grpo", "--against", "sft", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["data"] for row in rows] == ["x official test", "y official test"]
    assert rows[0]["after"] - rows[0]["before"] == pytest.approx(0.25)
    assert all(row["p_holm"] == pytest.approx(2 * row["p_value"]) for row in rows)


def test_the_table_names_what_one_run_cannot_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "one", [1.0, 1.0, 0.0], [0.0, 1.0, 0.0])
    assert evaluate(["seeds", str(folder), "--system", "grpo", "--against", "sft"]) == 0
    printed = capsys.readouterr()
    assert "0.333 -> 0.667" in printed.out
    assert "says nothing about seeds" in printed.err


@pytest.mark.parametrize(
    ("system", "metric", "sentence"),
    [("ppo", "recall@5", "has no system 'ppo', but grpo, sft"), ("grpo", "mrr", "has no metric 'mrr'")],
)
def test_a_missing_system_or_metric_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], system: str, metric: str, sentence: str
) -> None:
    folder = write_run(tmp_path / "one", [1.0], [0.0])
    assert evaluate(["seeds", str(folder), "--system", system, "--against", "sft", "--metric", metric]) != 0
    assert sentence in capsys.readouterr().err


def test_folders_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = write_run(tmp_path / "1", [1.0], [0.0]), write_run(tmp_path / "2", [1.0, 0.0], [0.0, 0.0])
    command = ["--system", "grpo", "--against", "sft"]
    assert evaluate(["seeds", str(first), str(second), *command]) != 0
    assert "different queries" in capsys.readouterr().err
    assert evaluate(["seeds", str(tmp_path / "missing"), *command]) != 0
    assert "not a finished evaluation" in capsys.readouterr().err
    (first / "metrics.json").write_text('{"attacks": []}')
    assert evaluate(["seeds", str(first), *command]) != 0
    assert "not an evaluation of systems" in capsys.readouterr().err
