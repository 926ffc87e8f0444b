"""`min_score` in a batch job: rows without a fitting tool are written, explained and counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from doubles import BM25_ONLY, plain_context, varied_tools

from pipelines.batch.api import run
from pipelines.batch.settings import BatchConfig
from pipelines.cli import main as cli
from pipelines.config import ConfigError, parse
from pipelines.data.trec import read_run
from pipelines.rewriters import RewriterSettings
from pipelines.search import ToolSearch
from retrievers.errors import BadInput
from retrievers.index import Index, build
from rewrite.settings import RulesSettings

TEXTS = ["nothing that anybody offers, in Athens", "list invoices of a customer", "zxqv"]
RULES = RewriterSettings(template="needs", backend=RulesSettings())


@pytest.fixture
def job(tmp_path: Path) -> BatchConfig:
    build(tmp_path / "index", varied_tools(60), BM25_ONLY, plain_context())
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(text) + "\n" for text in TEXTS))
    return BatchConfig(index=str(tmp_path / "index"), retriever="bm25", k=5)


def do(tmp_path: Path, config: BatchConfig, name: str = "out.jsonl", **options: Any) -> Any:
    return run(str(tmp_path / "in.jsonl"), str(tmp_path / name), config, show=False, **options)


@pytest.mark.parametrize("rules", [None, RULES])
def test_rows_say_that_nothing_fits(tmp_path: Path, job: BatchConfig, rules: RewriterSettings | None) -> None:
    config = replace(job, rewriter=rules)
    assert do(tmp_path, config, "all.jsonl").nothing_fits == 0
    usual = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert all(set(tool) == {"id", "score"} for row in usual for tool in row["tools"])
    search = ToolSearch(Index(Path(job.index or ""), plain_context()), "bm25")
    threshold = (search.explain([TEXTS[1]], 5)[0].relevance or (0,))[0]
    summary = do(tmp_path, replace(config, min_score=threshold))
    assert summary.nothing_fits == 2
    assert "2 rows for which no tool fits (min_score)" in summary.text()
    poor, good, none = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert poor["tools"] == []
    assert poor["nothing_fits"]["best"] == usual[0]["tools"][0]["id"]
    assert poor["nothing_fits"]["relevance"] < threshold
    assert none["nothing_fits"] == {"best": None, "relevance": 0.0, "min_score": threshold}
    assert "nothing_fits" not in good
    assert [tool["id"] for tool in good["tools"]] == [tool["id"] for tool in usual[1]["tools"]]
    assert all(tool["relevance"] >= threshold for tool in good["tools"])
    assert json.loads((tmp_path / "out.jsonl.batch.json").read_text())["summary"]["nothing_fits"] == 2
    with pytest.raises(BadInput, match="min_score"):  # the same output with another threshold
        do(tmp_path, replace(config, min_score=0.01))


def test_other_formats_hold_the_relevance(tmp_path: Path, job: BatchConfig) -> None:
    for name in ("out.parquet", "out.csv", "out.trec"):
        do(tmp_path, replace(job, min_score=0.02), name)
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert 0 < table[1]["tools"][0]["relevance"] <= 1
    assert table[2]["tools"] == []
    assert '""relevance"": 0.' in (tmp_path / "out.csv").read_text()
    rankings = read_run(tmp_path / "out.trec", {tool.id for tool in varied_tools(60)})
    assert [len(rankings[row]) for row in "123"] == [len(row["tools"]) for row in table]


def test_a_stream_counts_them_too(tmp_path: Path, job: BatchConfig, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "batch.yaml"
    config.write_text(f"index: {job.index}\nretriever: bm25\nmin_score: 0.99\n")
    assert cli.batch([str(tmp_path / "in.jsonl"), "-", "--config", str(config)]) == 0
    assert "3 rows for which no tool fits (min_score)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (2, "min_score must be at most 1, got 2"),
        (-1, "min_score must be at least 0, got -1"),
        (float("nan"), "min_score must be a number, not nan"),
        ("high", "min_score must be a number, not 'high'"),
    ],
)
def test_a_threshold_is_a_probability(wrong: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(BatchConfig, {"index": "x", "min_score": wrong})


def test_a_threshold_needs_an_index() -> None:
    with pytest.raises(ConfigError, match="without an `index` there are no tools"):
        parse(BatchConfig, {"rewriter": {"template": "needs", "backend": {"kind": "rules"}}, "min_score": 0.2})
