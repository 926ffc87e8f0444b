"""Rewrites that were written before: read as they were, and never guessed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines import config as configs
from pipelines.rewriters import RewriterSettings, make_rewriter
from retrievers.errors import BadInput
from rewrite.errors import RewriteError
from rewrite.settings import ReplaySettings, Sampling
from rewrite.types import RewriteRequest

LONG = "Skyscanner: " + "search for a place " * 20
ROWS = [
    {"id": "1", "text": "a coat?", "status": "rewritten", "queries": ["hourly forecast", LONG.strip()], "tokens": 9},
    {"id": "2", "text": " hello\nthere ", "status": "none", "queries": []},
    {"id": "3", "text": "gibberish", "status": "unparseable", "queries": []},
    {"id": "4", "text": "far too much", "status": "too-long", "queries": []},
    {"id": "6", "text": "two\u2028lines\x85here", "status": "rewritten", "queries": ["one"], "tokens": 1},
    {"id": "5", "text": "a coat?", "status": "rewritten", "queries": ["hourly forecast", LONG.strip()], "tokens": 9},
]


def _file(folder: Path, rows: list[dict[str, object]]) -> Path:
    path = folder / "out.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows) + "\n")
    return path


def test_rewrites_of_a_batch_job_are_read_as_they_were(tmp_path: Path) -> None:
    rewriter, facts = make_rewriter(RewriterSettings(backend=ReplaySettings(path=str(_file(tmp_path, ROWS)))))
    rewrites = rewriter.rewrite([RewriteRequest(str(row["text"])) for row in ROWS])
    assert [(rewrite.status, list(rewrite.lines)) for rewrite in rewrites] == [
        (row["status"], row["queries"]) for row in ROWS
    ]
    assert facts["backend"] == "replay"
    with pytest.raises(RewriteError, match="has no rewrite of 'an umbrella\\?'; write it first"):
        rewriter.rewrite([RewriteRequest("an umbrella?")])


def test_of_an_evaluation_one_rewriter_is_named(tmp_path: Path) -> None:
    rewrites = {"sft": {"status": "rewritten", "lines": ["one"]}, "aligned": {"status": "rewritten", "lines": ["two"]}}
    path = _file(tmp_path, [{"_id": "1", "text": "a coat?", "rewrites": rewrites}])
    settings = ReplaySettings(path=str(path), rewriter="aligned")
    rewriter, _ = make_rewriter(RewriterSettings(backend=settings))
    assert rewriter.rewrite([RewriteRequest("a coat?")])[0].lines == ("two",)
    with pytest.raises(RewriteError, match=r"out\.jsonl:1: .* with a rewriter 'ppo'"):
        make_rewriter(RewriterSettings(backend=ReplaySettings(path=str(path), rewriter="ppo")))
    with pytest.raises(RewriteError, match=r"out\.jsonl:1: .*name one of its rewriters by `rewriter`"):
        make_rewriter(RewriterSettings(backend=ReplaySettings(path=str(path))))


@pytest.mark.parametrize("reason", ["card", "detector", "confident"])
def test_a_rewriter_that_was_not_asked_is_not_replayed(tmp_path: Path, reason: str) -> None:
    row = {"id": "7", "text": "hello", "status": f"not-asked-{reason}", "queries": [], "tokens": 0}
    path = _file(tmp_path, [ROWS[0], row])
    way_out = r"`index` left out, or with `detect: false` and a `rewriter\.fusion`"
    with pytest.raises(RewriteError, match=rf"out\.jsonl:2: .*'hello' \(status not-asked-{reason}\); .*{way_out}"):
        make_rewriter(RewriterSettings(backend=ReplaySettings(path=str(path))))


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    def read(rows: list[dict[str, object]]) -> None:
        make_rewriter(RewriterSettings(backend=ReplaySettings(path=str(_file(tmp_path, rows)))))

    with pytest.raises(RewriteError, match="no file of rewrites"):
        make_rewriter(RewriterSettings(backend=ReplaySettings(path=str(tmp_path / "nothing"))))
    with pytest.raises(RewriteError, match="has no rewrites"):
        read([])
    with pytest.raises(RewriteError, match=r"out\.jsonl:2: another rewrite of 'a coat\?'"):
        read([ROWS[0], ROWS[0] | {"queries": ["a coat"]}])
    with pytest.raises(RewriteError, match=r"out\.jsonl:1: no line of rewrite-batch's output"):
        read([{"text": 3, "status": "none", "queries": []}])
    with pytest.raises(BadInput, match="the key path is missing"):
        configs.parse(ReplaySettings, {})
    with pytest.raises(BadInput, match="take no path, base, template"):
        RewriterSettings(template="needs", backend=ReplaySettings(path="x"))
    with pytest.raises(BadInput, match="take no path, base, template"):
        RewriterSettings(backend=ReplaySettings(path="x"), sampling=Sampling(temperature=1.0, answers=2))
