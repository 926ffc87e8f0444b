"""The raw query's share, chosen on dev with caution."""

from __future__ import annotations

import pytest
from doubles import BM25_ONLY, plain_context

from pipelines.evaluate.fusion_selection import FusionDevSet, choose_fusion
from pipelines.search import ToolSearch
from retrievers.errors import BadInput
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.settings import RewriteFusion
from retrievers.types import Ranking, Tool

RIGHT, WRONG = Ranking(("right", "b", "c"), (1.0, 0.5, 0.1)), Ranking(("x", "y", "z"), (1.0, 0.5, 0.1))
OTHER = Ranking(("p", "q", "r"), (1.0, 0.5, 0.1))
GRID = (RewriteFusion("weighted", 0.0), RewriteFusion("weighted", 0.9), RewriteFusion("weighted", 1.0))


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory, some_tools: list[Tool]) -> ToolSearch:
    folder = tmp_path_factory.mktemp("choosing") / "index"
    context: Context = plain_context()
    build(folder, some_tools, BM25_ONLY, context)
    return ToolSearch(Index(folder, context), "bm25")


def case(search: ToolSearch, gained: int, lost: int, same: int) -> FusionDevSet:
    """Queries that only the rewrite serves, that only the raw query serves, and that both serve."""
    raw = [WRONG] * gained + [RIGHT] * lost + [RIGHT] * same
    lists = [[RIGHT]] * gained + [[OTHER]] * lost + [[RIGHT]] * same
    count = gained + lost + same
    return FusionDevSet(search, ["?"] * count, raw, lists, [frozenset({"right"})] * count)


def test_a_rewrite_that_helps_for_sure_is_used(search: ToolSearch) -> None:
    tried = choose_fusion([case(search, 40, 2, 60)], "recall@3", GRID[::2])
    assert tried[0].fusion.raw == 0.0
    assert [round(each.score, 2) for each in tried] == [0.98, 0.61]


def test_a_gain_that_may_be_chance_is_not_bought(search: ToolSearch) -> None:
    tried = choose_fusion([case(search, 3, 2, 60)], "recall@3", GRID[::2])
    assert tried[0].fusion.raw == 1.0
    assert tried[0].score < tried[1].score


def test_a_rewrite_that_harms_is_left_out(search: ToolSearch) -> None:
    assert choose_fusion([case(search, 2, 40, 60)], "recall@3", GRID[::2])[0].fusion.raw == 1.0


def test_every_data_set_counts_the_same(search: ToolSearch) -> None:
    large, small = case(search, 0, 300, 0), case(search, 30, 0, 0)
    scores = {each.fusion.raw: each.score for each in choose_fusion([large, small], "recall@3", GRID[::2])}
    assert scores == {0.0: 0.5, 1.0: 0.5}


def test_without_dev_queries_nothing_can_be_chosen(search: ToolSearch) -> None:
    with pytest.raises(BadInput, match="no dev queries"):
        choose_fusion([])


def scored(ranking: Ranking, top: float) -> Ranking:
    return Ranking(ranking.ids, tuple(top * score for score in ranking.scores))


def test_the_gate_is_the_one_that_serves_dev_best(search: ToolSearch) -> None:
    # Raw queries that score 5 to 9 are right, and rewrites of two of them wrong; below 5 only rewrites are right.
    tops = [score for score in range(10) for _ in range(10)]
    raw = [scored(RIGHT if top >= 5 else WRONG, 1 + top) for top in tops]
    lists = [[OTHER if top in (6, 7) else RIGHT] for top in tops]
    gold = [frozenset({"right"})] * len(tops)
    dev = FusionDevSet(search, ["?"] * len(tops), raw, lists, gold)
    tried = choose_fusion([dev], "recall@3", GRID[::2])
    assert (tried[0].fusion.raw, tried[1].fusion.skip_rewrite_above) == (0.0, None)
    assert 5 < (tried[0].fusion.skip_rewrite_above or 0) <= 7
    assert [each.score for each in tried] == [1.0, 0.8, 0.5]
    assert dev.scores(tried[0].fusion, "recall@3").mean() == tried[0].score


def test_where_every_gate_costs_something_there_is_none(search: ToolSearch) -> None:
    raw = [scored(WRONG, 1.0 + place) for place in range(20)]
    dev = FusionDevSet(search, ["?"] * 20, raw, [[RIGHT]] * 20, [frozenset({"right"})] * 20)
    assert choose_fusion([dev], "recall@3", GRID[::2])[0].fusion == RewriteFusion("weighted", 0.0)
