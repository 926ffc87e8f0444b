"""The order of a reranked list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievers.rerank.ordering import count_fixed, reorder
from retrievers.types import Ranking

FIRST = Ranking(("a", "b", "c", "d", "e"), (5.0, 4.0, 3.0, 2.0, -1.0))


def test_the_weight_decides_between_both_orders() -> None:
    scores = np.array([0.0, 1.0, 2.0])
    assert reorder(FIRST, scores, 1.0).ids == ("c", "b", "a", "d", "e")
    assert reorder(FIRST, scores, 0.0) == FIRST
    assert reorder(FIRST, scores, 0.2).ids == FIRST.ids


def test_named_tools_stay_in_front_and_the_rest_behind() -> None:
    assert count_fixed(FIRST, ["b", "a"]) == 2
    assert count_fixed(FIRST, ["b"]) == 0
    assert reorder(FIRST, np.array([1.0, 2.0]), 1.0, fixed=1).ids == ("a", "c", "b", "d", "e")
    assert reorder(Ranking(), np.array([]), 1.0) == Ranking()
    assert reorder(FIRST, np.array([3.0]), 1.0) == FIRST


@given(st.lists(st.floats(-50, 50), max_size=5), st.floats(0, 1), st.integers(0, 2))
def test_an_order_loses_no_tool_and_keeps_scores_descending(scores: list[float], weight: float, fixed: int) -> None:
    named = Ranking(FIRST.ids, (6.0, 6.0, *FIRST.scores[2:])) if fixed == 2 else FIRST
    order = reorder(named, np.array(scores[: len(FIRST) - fixed]), weight, fixed)
    assert sorted(order.ids) == sorted(FIRST.ids)
    assert order.ids[:fixed] == FIRST.ids[:fixed]
    assert list(order.scores) == sorted(order.scores, reverse=True)


def test_equal_scores_leave_the_first_order() -> None:
    assert reorder(FIRST, np.zeros(4), 0.75).ids == FIRST.ids


@pytest.mark.parametrize("weight", [0.25, 0.5, 0.75])
def test_a_share_of_the_first_order_softens_the_new_one(weight: float) -> None:
    """The last of four is put first by the reranker: it rises with the weight, and never beyond."""
    scores = np.array([3.0, 2.0, 1.0, 4.0])
    rank = reorder(FIRST, scores, weight).ids.index("d")
    assert reorder(FIRST, scores, 1.0).ids.index("d") <= rank <= reorder(FIRST, scores, 0.0).ids.index("d")
