"""Evidence in rankings: scores, their means, shares of the highest possible score, ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from doubles import QUERIES, changed, plain_context, varied_tools

from pipelines.calibration import make_reader
from retrievers.index import Index, add, build, remove
from retrievers.settings import BM25Settings, HybridSettings
from retrievers.types import Ranking

SETTINGS = {
    "bm25": BM25Settings(),
    "rank": BM25Settings(engine="rank_bm25"),
    "flat": BM25Settings(b=0.0),
    "hybrid": HybridSettings(of=("bm25", "flat")),
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Several segments, and rows that are dead."""
    folder, context = tmp_path_factory.mktemp("evidence") / "index", plain_context()
    tools = varied_tools(50)
    build(folder, tools[:40], SETTINGS, context)
    add(folder, [*tools[40:], changed(tools[0])], context)
    remove(folder, [tools[1].id], context)
    return Index(folder, context)


def test_no_score_exceeds_the_highest_possible_one(index: Index) -> None:
    bounds = {name: index.retriever(name).max_scores(QUERIES) for name in ("bm25", "rank", "flat")}  # type: ignore[attr-defined]
    assert bounds["rank"] == pytest.approx(bounds["bm25"])
    assert bounds["flat"] == pytest.approx(bounds["bm25"])
    for name in bounds:
        for ranking, bound in zip(index.retriever(name).search(QUERIES, 100), bounds[name], strict=True):
            assert all(0 < score <= bound for score in ranking.scores)
            assert bool(ranking) == (bound > 0)


def test_evidence_is_as_described(index: Index) -> None:
    query = QUERIES[0]
    [ranking] = index.retriever("bm25").search([query], 12)
    [rows] = make_reader(index, "bm25").read([query], [ranking])
    [bound] = index.retriever("bm25").max_scores([query])  # type: ignore[attr-defined]
    scores = np.array(ranking.scores)
    assert rows[:, 0] == pytest.approx(np.log1p(scores))
    assert rows[:, 1] == pytest.approx(scores / bound)
    assert rows[:, 2] == pytest.approx(np.log1p(scores[:10].mean()))
    assert rows[:, 3] == pytest.approx(-np.log(np.arange(1, 13)))


def test_a_hybrid_has_the_evidence_of_its_parts(index: Index) -> None:
    query, reader = QUERIES[6], make_reader(index, "hybrid")
    [ranking] = index.retriever("hybrid").search([query], 8)
    [rows] = reader.read([query], [ranking])
    for name, columns in (("bm25", slice(0, 3)), ("flat", slice(3, 6))):
        [part] = index.retriever(name).search([query], 100)
        [theirs] = make_reader(index, name).read([query], [part])
        for row, tool in zip(rows, ranking.ids, strict=True):
            assert row[columns] == pytest.approx(theirs[part.ids.index(tool)][:3])
    assert len(reader.rising) == rows.shape[1] == 7
    assert reader.read(["", query], [Ranking(), ranking])[0].shape == (0, 7)


def test_a_tool_that_a_part_does_not_list_has_no_score_there(index: Index) -> None:
    [ranking] = index.retriever("hybrid").search([QUERIES[0]], 5)
    bm25, flat = ranking.parts
    cut = replace(ranking, parts=(bm25.without({ranking.ids[0]}), flat))
    [rows] = make_reader(index, "hybrid").read([QUERIES[0]], [cut])
    assert list(rows[0, :2]) == [0, 0]
    assert rows[0, 3] > 0


def test_hidden_tools_leave_a_ranking_and_its_parts() -> None:
    part = Ranking(("a", "b"), (2.0, 1.0))
    ranking = Ranking(("a", "b", "c"), (3.0, 2.0, 1.0), (0.3, 0.2, 0.1), (part,))
    hidden = ranking.without({"a", "z"})
    assert hidden == Ranking(("b", "c"), (2.0, 1.0), (0.2, 0.1))
    assert hidden.parts == (Ranking(("b",), (1.0,)),)
    assert ranking.cut(1) == Ranking(("a",), (3.0,), (0.3,))
