"""`min_score` in ToolSearch, and `rewrite-index calibrate`: a search can say that nothing fits."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles import BM25_ONLY, plain_context, varied_tools

from pipelines.calibration import find_calibration
from pipelines.cli import main as cli
from pipelines.context import make_context
from pipelines.data.dataset import load_dataset
from pipelines.data.sample_data import sample_folder
from pipelines.database.catalogue_state import encode_settings
from pipelines.index.calibrate import calibrate_retriever, collect_evidence
from pipelines.index.calibration_report import area_under_curve, calibration_error
from pipelines.renew.retrain import calibrate_candidate
from pipelines.renew.rounds import CANDIDATE
from pipelines.renew.settings import COLLECTED
from pipelines.rewriters import RewriterSettings, make_rewriter
from pipelines.search import ToolSearch
from retrievers.calibration.logistic import Calibration
from retrievers.errors import BadInput
from retrievers.index import Index, add, build, calibrate, verify
from retrievers.index import manifest as manifests
from retrievers.kind import Context
from retrievers.settings import BM25Settings, DenseSettings, HybridSettings, RewriteFusion
from retrievers.types import Tool
from rewrite.settings import RulesSettings

SHIPPED = sample_folder() / "index"
QUERIES = [
    "will it rain in Lisbon on Thursday",
    "play some jazz",
    "prove that there are infinitely many primes",
    "nimbus_ledger/v2/forecast/hourly please",
    "",
]
THREE = {"bm25": BM25Settings(), "dense": DenseSettings(), "hybrid": HybridSettings(of=("dense", "bm25"))}


@pytest.fixture(scope="module")
def index(sample_tools: list[Tool], context: Context, tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("calibrated") / "index"
    build(folder, sample_tools, THREE, context)
    return Index(folder, context)


@pytest.mark.parametrize("name", THREE)
def test_tools_below_the_threshold_are_left_out_and_all_others_stay(index: Index, name: str) -> None:
    search = ToolSearch(index, name)
    usual = search.explain(QUERIES, 10)
    assert [result.ranking.ids for result in usual] == [
        result.ids for result in ToolSearch(index, name).search(QUERIES, 10)
    ]
    assert {result.nothing_fits for result in usual} == {None}
    for threshold in (0, 0.05, 0.2, 0.5, 1.0):
        for before, after in zip(usual, search.explain(QUERIES, 10, min_score=threshold), strict=True):
            assert before.relevance is not None
            assert after.relevance is not None
            assert len(before.relevance) == len(before.ranking)
            kept = sum(value >= threshold for value in before.relevance)
            assert after.ranking == before.ranking.cut(kept)
            assert after.relevance == before.relevance[:kept]
            assert (after.nothing_fits is None) == bool(kept)


def test_an_empty_answer_says_why(index: Index) -> None:
    search = ToolSearch(index, "hybrid")
    rain, _, nonsense, named, empty = search.explain(QUERIES, 5, min_score=0.999)
    assert rain.nothing_fits is not None
    assert str(rain.nothing_fits) == (
        f"no tool fits: the best, {rain.raw.ids[0]}, has relevance {rain.nothing_fits.relevance:.2f}, below min_score "
        "0.999"
    )
    assert nonsense.nothing_fits is not None
    assert nonsense.nothing_fits.relevance < rain.nothing_fits.relevance
    assert named.ranking.ids[0] == "nimbus_ledger/v2/forecast/hourly"  # a tool that is named always stays
    assert str(empty.nothing_fits) == "no tool fits: none was found"


def test_a_rewrite_may_make_a_tool_relevant(index: Index) -> None:
    rewriter, _ = make_rewriter(RewriterSettings(template="needs", backend=RulesSettings()))
    search = ToolSearch(index, "bm25", rewriter, RewriteFusion("weighted", 0.5))
    text = "could you please tell me whether it rains in Lisbon, and also play some jazz"
    [result] = search.explain([text], 10)
    assert result.line_rankings
    assert result.relevance is not None
    best = {
        tool: max(
            one.probabilities[one.ids.index(tool)] for one in (result.raw, *result.line_rankings) if tool in one.ids
        )
        for tool in result.ranking.ids
    }
    assert result.relevance[0] == pytest.approx(
        1 - math.prod(1 - best[tool] for tool in result.ranking.ids[:5]), abs=1e-5
    )


@pytest.mark.parametrize("wrong", [math.nan, 2, -0.1, "0.3", True])
def test_a_threshold_is_a_probability(index: Index, wrong: Any) -> None:
    with pytest.raises(BadInput, match=r"^min_score must be a number between 0 and 1, got "):
        ToolSearch(index, "bm25").search(["rain"], 3, min_score=wrong)


def test_a_retriever_without_calibration_refuses_a_threshold(tmp_path: Path) -> None:
    lexical = {"bm25": BM25Settings(), "flat": BM25Settings(b=0), "both": HybridSettings(of=("bm25", "flat"))}
    build(tmp_path / "index", varied_tools(30), lexical, plain_context())
    search = ToolSearch(Index(tmp_path / "index", plain_context()), "both")
    assert search.explain(["weather"], 3)[0].relevance is None
    with pytest.raises(BadInput, match=r"min_score needs a calibrated retriever.*run `rewrite-index calibrate`"):
        search.search(["rain"], 3, min_score=0.2)


def test_no_text_is_embedded_twice(index: Index, monkeypatch: pytest.MonkeyPatch, context: Context) -> None:
    calls: list[Sequence[str]] = []
    search = ToolSearch(index, "hybrid")
    for encoder in {id(one): one for one in context.encoders.values()}.values():  # other tests have opened some too
        if not hasattr(encoder, "queries"):  # a language model
            continue
        queries = encoder.queries
        monkeypatch.setattr(encoder, "queries", lambda texts, own=queries: calls.append(texts) or own(texts))
    search.explain(["a query that is new here"], 3, min_score=0.1)
    assert calls == [["a query that is new here"]]


def write_copy(tmp_path: Path, name: str = "index") -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / name))


def test_calibrate_stores_what_scores_mean_and_changes_no_ranking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], context: Context
) -> None:
    folder = write_copy(tmp_path)
    before = Index(folder, context)
    flags = [str(folder), "--data", "bundled:sample", "--retriever", "bm25"]
    assert cli.index(["calibrate", *flags, "--dry-run", "--json"]) == 0
    tried = json.loads(capsys.readouterr().out)["bm25"]
    assert before.latest() is before
    assert cli.index(["calibrate", *flags]) == 0
    assert "calibrated, fingerprint" in capsys.readouterr().out
    after = before.latest()
    assert after.fingerprint != before.fingerprint
    assert verify(folder) == []
    calibration = find_calibration(after, "bm25")
    assert calibration is not None
    assert calibration != find_calibration(before, "bm25")
    assert list(calibration.weights) == tried["calibration"]["weights"]
    assert 0 <= tried["report"]["lost"] <= 0.2
    assert after.retriever("bm25").search(QUERIES, 9) == before.retriever("bm25").search(QUERIES, 9)
    add(folder, varied_tools(3), context)
    assert find_calibration(after.latest(), "bm25") == calibration  # tools come and go, scores keep their meaning
    assert cli.index(["info", str(folder), "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)["retrievers"]["bm25"]["calibration"]
    assert stored["min_score"] == calibration.min_score


def test_masstool_is_calibrated_without_what_it_remembers(context: Context) -> None:
    """Its pool holds the dev queries: searched as a user would, nearly every one is answered right."""
    index, data = Index(SHIPPED, context), load_dataset("bundled:sample")
    order = sorted(data.gold["dev"])
    texts, gold = [data.queries[query].text for query in order], [data.gold["dev"][query] for query in order]
    shown = [query for query in collect_evidence(index, "masstool", texts, gold) if not query.hidden]
    assert 0.3 < np.mean([query.needed[:5].any() for query in shown]) < 0.95
    calibration, report = calibrate_retriever(index, "masstool", data)
    assert report.auc > 0.55
    assert report.error < 0.2
    assert 0 < calibration.min_score < 0.6


def test_hidden_tools_are_in_no_evidence(index: Index) -> None:
    data = load_dataset("bundled:sample")
    order = sorted(data.gold["dev"])[:40]
    texts, gold = [data.queries[query].text for query in order], [data.gold["dev"][query] for query in order]
    queries = collect_evidence(index, "hybrid", texts, gold)
    assert [query.hidden for query in queries] == [False, True] * 40
    assert not any(query.needed.any() for query in queries if query.hidden)
    assert any(query.needed.any() for query in queries)
    smaller = [tool for tool in index.tools.values() if tool.id not in gold[0]]
    assert len(queries[1].evidence) == min(10, len(smaller))


def test_too_few_labels_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(tmp_path / "other", varied_tools(9), BM25_ONLY, plain_context())
    assert cli.index(["calibrate", str(tmp_path / "other"), "--data", "bundled:sample"]) == 2
    assert "a calibration needs 50 queries, and" in capsys.readouterr().err


def test_figures_are_those_of_brute_force() -> None:
    chance = np.random.default_rng(0)
    higher, lower = chance.integers(0, 6, 30) / 5, chance.integers(0, 6, 20) / 5
    wins = [1.0 if one > other else 0.5 if one == other else 0.0 for one in higher for other in lower]
    assert area_under_curve(higher, lower) == pytest.approx(sum(wins) / 600)
    values, right = chance.random(200), chance.random(200) < 0.5
    total = 0.0
    for number in range(10):
        rows = [i for i, value in enumerate(values) if number / 10 <= value < (number + 1) / 10]
        if rows:
            total += abs(sum(values[i] for i in rows) - sum(right[i] for i in rows)) / 200
    assert calibration_error(values, right) == pytest.approx(total)


def test_the_command_leaves_out_and_explains(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["search", str(index.folder), "--retriever", "bm25", "--min-score"]
    assert cli.index([*flags, "0.98", "which gym has a free slot"]) == 0
    assert "bm25: no tool fits: the best, " in capsys.readouterr().out
    assert cli.index([*flags, "0", "which gym has a free slot", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert "nothing_fits" not in facts
    assert all(0 <= hit["relevance"] <= 1 for hit in facts["tools"]["bm25"])
    assert cli.index([*flags, "1", "which gym has a free slot", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["tools"] == {"bm25": []}
    assert facts["nothing_fits"]["bm25"]["min_score"] == 1


@pytest.mark.parametrize("wrong", ["nan", "2", "-1"])
def test_the_command_refuses_what_is_no_probability(
    index: Index, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    assert cli.index(["search", str(index.folder), "rain", f"--min-score={wrong}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("rewrite-index: --min-score must be a number between 0 and 1, got ")
    with pytest.raises(SystemExit):
        cli.index(["search", str(index.folder), "rain", "--min-score=high"])
    assert "invalid float value: 'high'" in capsys.readouterr().err


def test_the_context_of_a_command_opens_a_calibrated_index(tmp_path: Path) -> None:
    build(tmp_path / "index", varied_tools(30), BM25_ONLY, plain_context())
    assert ToolSearch(Index(tmp_path / "index", make_context("cpu")), "bm25").is_calibrated


def test_a_renewed_index_and_a_database_keep_calibrations(
    tmp_path: Path, sample_tools: list[Tool], context: Context
) -> None:
    for name in ("live", CANDIDATE):
        build(tmp_path / name, sample_tools, {**BM25_ONLY, "flat": BM25Settings(b=0)}, context)
    assert "calibration" not in encode_settings(Index(tmp_path / "live", context).manifest)
    calibrate(tmp_path / "live", {"bm25": Calibration(-1.0, (1.0, 1.0, 0.0, 1.0), 0.3)})
    live = Index(tmp_path / "live", context)
    (tmp_path / COLLECTED).symlink_to(sample_folder())
    calibrate_candidate(tmp_path, live, context)
    parts = Index(tmp_path / CANDIDATE, context).manifest.retrievers
    assert parts["bm25"].calibration  # fitted again: the weights of a candidate are its own
    assert parts["bm25"].calibration != live.manifest.retrievers["bm25"].calibration
    assert not parts["flat"].calibration
    stored = manifests.decode(json.loads(encode_settings(live.manifest)))
    assert stored.retrievers["bm25"].calibration == live.manifest.retrievers["bm25"].calibration
