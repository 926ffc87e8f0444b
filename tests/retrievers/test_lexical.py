"""BM25 gives the scores of rank_bm25, with a bonus for names, in any script, and does not load JAX."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import rank_bm25
from paths import ROOT

from pipelines.data.sample_data import sample_folder
from retrievers.base import BoundsScores
from retrievers.index import Index, add, build, remove
from retrievers.kind import Block, Context
from retrievers.lexical.bm25 import BM25Kind
from retrievers.registry import settings_from_json, settings_to_json
from retrievers.rows import Rows
from retrievers.settings import BM25Settings
from retrievers.text import FIELDS, document, name_tokens, spaced_name, tokens
from retrievers.types import Ranking, Tool


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
    build(tmp_path / "index", sample_tools, {"bm25": BM25Settings(k1=k1, b=b, names=0)}, context)
    check_against_rank_bm25(Index(tmp_path / "index", context), utterances, k1, b)


def test_scores_are_those_of_rank_bm25_after_changes(
    sample_tools: list[Tool], context: Context, utterances: list[str], tmp_path: Path
) -> None:
    settings = {"bm25": BM25Settings(names=0), "slow": BM25Settings(engine="rank_bm25", names=0)}
    build(tmp_path / "index", sample_tools[:150], settings, context)
    add(tmp_path / "index", sample_tools[140:], context)
    remove(tmp_path / "index", [tool.id for tool in sample_tools[20:60]], context)
    index = Index(tmp_path / "index", context)
    check_against_rank_bm25(index, utterances)
    assert index.retriever("slow").search(utterances, 10) == index.retriever("bm25").search(utterances, 10)


def name_bonus(tools: Sequence[Tool], words: Sequence[str], weight: float) -> dict[str, float]:
    """The formula of `names.py`, tool by tool."""
    names = {tool.id: set(name_tokens(tool.name)) for tool in tools}
    frequency = Counter(word for tool in tools for word in set(tokens(document(tool))))
    idf = {word: math.log((len(tools) + 1) / count) for word, count in frequency.items()}
    bonus = {}
    for tool, own in names.items():
        found, whole = (sum(idf[word] for word in group) for group in (own & set(words), own))
        bonus[tool] = weight * found * (found / whole) ** 3 if found else 0.0
    return bonus


@pytest.mark.parametrize("weight", [2.0, 0.5])
def test_a_tool_has_the_bonus_of_its_name_also_after_changes(
    weight: float, sample_tools: list[Tool], context: Context, utterances: list[str], tmp_path: Path
) -> None:
    settings = {
        "plain": BM25Settings(names=0),
        "bm25": BM25Settings(names=weight),
        "slow": BM25Settings(engine="rank_bm25", names=weight),
    }
    build(tmp_path / "index", sample_tools[:150], settings, context)
    add(tmp_path / "index", sample_tools[140:], context)
    remove(tmp_path / "index", [tool.id for tool in sample_tools[20:60]], context)
    index = Index(tmp_path / "index", context)
    tools = list(index.tools.values())
    asked = [*utterances[:60], *(spaced_name(tool.name) for tool in tools[:40])]
    plain, named, slow = (index.retriever(name).search(asked, len(tools)) for name in settings)
    assert slow == named
    raised = 0
    for query, before, after in zip(asked, plain, named, strict=True):
        scores, bonus = dict(before), name_bonus(tools, tokens(query), weight)
        assert dict(after) == pytest.approx({tool: scores[tool] + bonus[tool] for tool in scores}, abs=1e-7)
        raised += any(bonus.values())
    assert raised >= 40
    build(tmp_path / "new", tools, settings, context)
    new = Index(tmp_path / "new", context)
    for name in settings:
        retriever, same = index.retriever(name), new.retriever(name)
        assert isinstance(retriever, BoundsScores)
        assert isinstance(same, BoundsScores)
        assert retriever.max_scores(asked) == pytest.approx(same.max_scores(asked))  # removed tools leave nothing
        tops = [max(ranking.scores, default=0.0) for ranking in retriever.search(asked, 1)]
        assert all(top <= most for top, most in zip(tops, retriever.max_scores(asked), strict=True))


def test_a_tool_that_is_asked_for_by_name_comes_first(
    sample_tools: list[Tool], context: Context, tmp_path: Path
) -> None:
    """BM25 alone counts words, and prefers the tool that says more of them."""
    sheets = Tool("sheets", "Google Sheets", "Read, update and write data in spreadsheets.")
    rows = Tool("rows", "Row counter", "Count each row of a table, whenever one is added.")
    settings = {"plain": BM25Settings(names=0), "bm25": BM25Settings()}
    asked = "note each row that is added in Google Sheets"
    for text, first in ((FIELDS, "sheets"), (("description",), "rows")):
        build(tmp_path / "index", [*sample_tools, sheets, rows], settings, context, text=text)
        index = Index(tmp_path / "index", context)
        plain, named = (index.retriever(name).search([asked], 1)[0] for name in settings)
        assert (plain.ids, named.ids) == (("rows",), (first,))


def test_the_bonus_of_a_name_with_spaces_is_the_same_in_any_case(
    sample_tools: list[Tool], context: Context, tmp_path: Path
) -> None:
    build(
        tmp_path / "index",
        [*sample_tools, Tool("gh", "GitHub Issues", "Opens them.")],
        {"bm25": BM25Settings()},
        context,
    )
    retriever = Index(tmp_path / "index", context).retriever("bm25")
    for asked in ("open a github issue", "OPEN A GITHUB ISSUE", "open a Github issue"):
        [ranking] = retriever.search([asked], 1)
        assert (ranking.ids, ranking.scores[0] > 20) == (("gh",), True)


def test_segments_without_names_are_searched_as_before(some_tools: list[Tool], context: Context) -> None:
    """Those of an index of an earlier version, alone and merged with newer ones."""
    kind, live = BM25Kind(BM25Settings(), context), np.ones(len(some_tools), dtype=bool)
    documents, names = [document(tool) for tool in some_tools], [tool.name for tool in some_tools]
    old, new = Block(kind.rows(documents), live), Block(kind.rows_with_names(documents, names), live)
    assert kind.merge([new, new]).keys() == new.arrays.keys() > old.arrays.keys()
    assert kind.merge([old, new]).keys() == old.arrays.keys()
    rows = Rows([tool.id for tool in some_tools], live)
    asked = [document(tool, ("name",)) for tool in some_tools]

    def search(block: Block, settings: BM25Settings) -> list[Ranking]:
        return BM25Kind(settings, context).open([block], rows, "", no_other).search(asked, 5)

    assert search(old, BM25Settings()) == search(old, BM25Settings(names=0)) != search(new, BM25Settings())


def test_settings_of_an_earlier_version_have_no_bonus() -> None:
    """A catalogue in a database keeps texts: at one fingerprint all gateways rank alike, whatever their version."""
    stored = settings_to_json(BM25Settings())
    assert settings_from_json(stored) == BM25Settings()
    del stored["names"]
    assert settings_from_json(stored) == BM25Settings(names=0)


def no_other(name: str) -> NoReturn:
    raise AssertionError(f"BM25 opens no other retriever, got {name}")


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
    program = "import retrievers.lexical.bm25; print('bm25 is there'); import jax.lax"
    paths = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    told = subprocess.run([sys.executable, "-c", program], env=paths, capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (0, "bm25 is there\njax wakes\n"), told.stderr
    theirs = subprocess.run([sys.executable, "-c", f"import jax; {program}"], env=paths, capture_output=True, text=True)
    assert (theirs.returncode, theirs.stdout) == (0, "jax wakes\nbm25 is there\n"), theirs.stderr
