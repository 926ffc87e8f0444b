"""BM25 gives the scores of rank_bm25, in any script, and does not load JAX."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import rank_bm25
from paths import ROOT

from pipelines.data.sample_data import sample_folder
from retrievers.index import Index, add, build, remove
from retrievers.kind import Context
from retrievers.settings import BM25Settings
from retrievers.text import document, tokens
from retrievers.types import Tool


@pytest.fixture(scope="module")
def utterances() -> list[str]:
    lines = (sample_folder() / "queries.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line)["text"] for line in lines if line][:300]


def check_against_rank_bm25(index: Index, utterances: list[str], k1: float = 1.5, b: float = 0.75) -> None:
    """rank_bm25, as its users call it, gives the same ten best scores to the same tools."""
    tools = list(index.tools.values())
    theirs = rank_bm25.BM25Plus([tokens(document(tool)) for tool in tools], k1=k1, b=b, delta=0)
    ours = index.retriever("bm25").search(utterances, 10)
    for utterance, ranking in zip(utterances, ours, strict=True):
        scores = dict(zip([tool.id for tool in tools], theirs.get_scores(tokens(utterance)), strict=True))
        best = sorted((score for score in scores.values() if score > 0), reverse=True)[:10]
        assert list(ranking.scores) == pytest.approx(best, abs=1e-8)
        assert [scores[tool] for tool in ranking.ids] == pytest.approx(best, abs=1e-8)


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.9, 0.4), (2.0, 1.0)])
def test_scores_are_those_of_rank_bm25(
    k1: float, b: float, sample_tools: list[Tool], context: Context, utterances: list[str], tmp_path: Path
) -> None:
    build(tmp_path / "index", sample_tools, {"bm25": BM25Settings(k1=k1, b=b)}, context)
    check_against_rank_bm25(Index(tmp_path / "index", context), utterances, k1, b)


def test_scores_are_those_of_rank_bm25_after_changes(
    sample_tools: list[Tool], context: Context, utterances: list[str], tmp_path: Path
) -> None:
    settings = {"bm25": BM25Settings(), "slow": BM25Settings(engine="rank_bm25")}
    build(tmp_path / "index", sample_tools[:150], settings, context)
    add(tmp_path / "index", sample_tools[140:], context)
    remove(tmp_path / "index", [tool.id for tool in sample_tools[20:60]], context)
    index = Index(tmp_path / "index", context)
    check_against_rank_bm25(index, utterances)
    assert index.retriever("slow").search(utterances, 10) == index.retriever("bm25").search(utterances, 10)


def test_words_of_every_script_are_found(context: Context, tmp_path: Path) -> None:
    tools = [
        Tool("a", "погода", "Прогноз погоды на завтра"),
        Tool("b", "天气预报", "查询城市的天气预报"),
        Tool("c", "wetter", "Wettervorhersage für Städte"),
        Tool("d", "getLocaleMetaData", "…"),
    ]
    build(tmp_path / "index", tools, {"bm25": BM25Settings()}, context)
    search = Index(tmp_path / "index", context).retriever("bm25").search
    asked = ["прогноз ПОГОДЫ", "明天天气怎么样", "vorhersage für STÄDTE", "locale meta data"]
    assert [ranking.ids[:1] for ranking in search(asked, 1)] == [("a",), ("b",), ("c",), ("d",)]


def test_no_gpu_memory_goes_to_a_library_that_is_not_asked(tmp_path: Path) -> None:
    """Where JAX is installed, it is neither woken nor lost to the program."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax/__init__.py").write_text("print('jax wakes')")
    (tmp_path / "jax/lax.py").write_text("top_k = lambda *_: None")
    program = "import retrievers.lexical; print('bm25 is there'); import jax.lax"
    paths = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    told = subprocess.run([sys.executable, "-c", program], env=paths, capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (0, "bm25 is there\njax wakes\n"), told.stderr
    theirs = subprocess.run([sys.executable, "-c", f"import jax; {program}"], env=paths, capture_output=True, text=True)
    assert (theirs.returncode, theirs.stdout) == (0, "jax wakes\nbm25 is there\n"), theirs.stderr
