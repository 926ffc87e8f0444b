"""report.html of a training run shows the figures of metrics.jsonl, and escapes all texts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pipelines.report.charts import line_chart
from pipelines.train.report import read_figures, training_page

FUSION = [{"fusion": {"method": "weighted", "raw": 0.4, "skip_rewrite_above": None}, "score": 0.39}]


def metrics(**more: Any) -> dict[str, Any]:
    return {"raw": {"recall@5": 0.305}, "best": 0.382, "step": 20, "fusion": FUSION, "history": [{}, {}], **more}


def run(folder: Path, *rows: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_it_tells_where_the_run_began_and_ended(tmp_path: Path) -> None:
    rows = [
        {"step": 0, "eval_recall@5": 0.31},
        {"step": 10, "loss": 0.6},
        {"step": 20, "loss": 0.4, "eval_recall@5": 0.382},
    ]
    folder = run(tmp_path / "mine", *rows)
    page = training_page(folder, "dpo", metrics(start={"eval_recall@5": 0.31}, kept="best", collapse=None))
    assert "Recall@5 on dev is 38.2\u00a0%, 31.0\u00a0% at the start; the raw query alone has 30.5\u00a0%." in page
    assert "Recall@5 31 → 38.2" in page
    assert "raw query alone 30.5" in page
    assert "training 0.6 → 0.4" in page
    assert "Distance" not in page  # of which nothing was measured
    assert "<aside" not in page
    for part in ("Content-Security-Policy", 'name="viewport"', 'name="color-scheme"'):
        assert part in page


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"collapse": "answers are all alike"}, "Stopped early: answers are all alike."),
        ({"kept": "start"}, "the start was kept"),
        (
            {"fusion": [{"fusion": {"method": "weighted", "raw": 1.0, "skip_rewrite_above": 0.7}, "score": 0.3}]},
            "advises not to use it",
        ),
    ],
)
def test_it_tells_what_went_wrong(tmp_path: Path, more: dict[str, Any], text: str) -> None:
    assert text in training_page(run(tmp_path, {"step": 1, "loss": 1.0}), "dpo", metrics(**more))


def test_rounds_are_counted_on_and_odd_figures_left_out(tmp_path: Path) -> None:
    run(tmp_path / "round-2", {"step": 5, "loss": 0.5})
    run(tmp_path / "round-10", {"step": 5, "loss": 0.3})
    assert [row["step"] for row in read_figures(run(tmp_path, {"step": 1, "loss": "odd"}))] == [5, 10, 11]
    page = training_page(tmp_path, "dpo", metrics())
    assert "training 0.5 → 0.3" in page
    assert line_chart("x", {"a": [(1, math.nan)]}) == ""
    assert "nan" not in line_chart("x", {"a": [(1, math.nan), (2, 1.0)], "b": [(1, math.inf)]})


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    odd = [{"fusion": {"method": evil, "raw": 0.4, "skip_rewrite_above": None}, "score": 0.39}]
    page = training_page(run(tmp_path, {"step": 1, "loss": 1.0}), evil, metrics(collapse=evil, fusion=odd))
    assert evil not in page
    assert page.count("&lt;script&gt;alert(1)") >= 4
