"""Outcomes of rows: rewritten, echoed, left alone, unparseable, and not asked for three reasons."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doubles import BM25_ONLY, ScriptedBackend, plain_context, varied_tools

from pipelines.batch.api import run
from pipelines.batch.settings import BatchConfig
from pipelines.batch.summary import BatchSummary
from pipelines.detection import Detection
from pipelines.rewriters import RewriterSettings
from pipelines.search import ToolSearch
from retrievers.index import Index, build
from retrievers.settings import RewriteFusion
from rewrite.backends import base
from rewrite.settings import RulesSettings

TEXTS = ["track a parcel in any currency of provider3 and category3", "book a hotel", "find a parcel", "cancel it"] * 3
ANSWERS = {"track": "- something else", "book": "- Book a hotel.", "find": "no list", "cancel": "NONE"}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchConfig]:
    monkeypatch.setitem(base.BACKENDS, "rules", "doubles:ScriptedBackend")
    script = staticmethod(lambda text: ANSWERS[text.split()[0]])
    monkeypatch.setattr(ScriptedBackend, "script", script, raising=False)
    ScriptedBackend.asked.clear()
    build(tmp_path / "index", varied_tools(30), BM25_ONLY, plain_context())
    rules = RewriterSettings(template="needs", backend=RulesSettings())
    yield BatchConfig(rewriter=rules, index=str(tmp_path / "index"), retriever="bm25", chunk_size=5)
    ScriptedBackend.asked.clear()


def fused(config: BatchConfig, fusion: RewriteFusion) -> BatchConfig:
    assert config.rewriter is not None
    return replace(config, rewriter=replace(config.rewriter, fusion=fusion))


def do(folder: Path, config: BatchConfig) -> tuple[BatchSummary, list[dict[str, Any]]]:
    (folder / "in.jsonl").write_text("".join(json.dumps(text) + "\n" for text in TEXTS))
    summary = run(str(folder / "in.jsonl"), str(folder / "out.jsonl"), config, show=False)
    return summary, [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def test_echoes_are_no_rewrites(tmp_path: Path, config: BatchConfig) -> None:
    summary, rows = do(tmp_path, config)
    assert summary.statuses == {"rewritten": 3, "echo": 3, "unparseable": 3, "none": 3}
    assert (summary.parsed, summary.fallbacks) == (0.75, 3)
    assert rows[1]["queries"] == ["Book a hotel."]
    text = "3 rewritten, 3 only repeated (echo), 3 left alone (none), 3 unparseable\n75.0% of the answers were parsed"
    assert text in summary.text()


def test_a_rewriter_that_its_card_leaves_out_is_not_even_loaded(
    tmp_path: Path, config: BatchConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(base.BACKENDS, "rules", "nowhere:Nothing")
    summary, rows = do(tmp_path, fused(config, RewriteFusion(raw=1)))
    assert summary.statuses == {"not-asked-card": 12}
    assert summary.parsed is None
    assert "12 not asked: the fusion gives the raw query everything" in summary.text()
    assert "set `rewriter.fusion` to ask it" in caplog.text
    raw = ToolSearch(Index(tmp_path / "index", plain_context()), "bm25").search(TEXTS, 10)
    assert [[tool["id"] for tool in row["tools"]] for row in rows] == [list(ranking.ids) for ranking in raw]
    assert {(row["status"], len(row["queries"]), row["tokens"]) for row in rows} == {("not-asked-card", 0, 0)}


def test_without_an_index_every_row_is_rewritten(tmp_path: Path, config: BatchConfig) -> None:
    summary, _ = do(tmp_path, replace(fused(config, RewriteFusion(raw=1)), index=None))
    assert summary.answered == 4


def test_needless_and_confident_queries_are_not_asked(
    tmp_path: Path, config: BatchConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = ToolSearch(Index(tmp_path / "index", plain_context()), "bm25")
    [limit, *others] = [ranking.scores[0] for ranking in search.retrieve(TEXTS[:4], 100)]
    assert max(others) < limit
    monkeypatch.setattr(ToolSearch, "has_detector", True)

    def detect(_: ToolSearch, texts: list[str], threshold: float | None = None) -> list[Detection]:
        return [Detection(not text.startswith("cancel"), 0.5, 0.5) for text in texts]

    monkeypatch.setattr(ToolSearch, "detect", detect)
    summary, rows = do(tmp_path, fused(config, RewriteFusion(raw=0.5, skip_rewrite_above=limit)))
    assert summary.statuses == {"not-asked-confident": 3, "echo": 3, "unparseable": 3, "not-asked-detector": 3}
    assert (summary.answered, summary.parsed) == (2, 0.5)
    assert rows[3]["tools"] == []
    assert rows[0]["tools"][0]["id"] == search.search([TEXTS[0]], 1)[0].ids[0]
