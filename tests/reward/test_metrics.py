"""Every metric against brute force, and against scikit-learn where it has the same one."""

from __future__ import annotations

import doctest
from itertools import permutations
from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import label_ranking_average_precision_score, ndcg_score, recall_score

import reward.metrics
from reward.metrics import judge, measure

TOOLS = "abcdefghij"
cases = st.tuples(
    st.permutations(TOOLS).flatmap(lambda order: st.integers(0, 10).map(lambda n: order[:n])),
    st.sets(st.sampled_from(TOOLS + "xyz"), min_size=1, max_size=6),
)
ks = st.integers(1, 10)


def one(metric: str, ranking: list[str], gold: set[str]) -> float:
    return float(measure(metric, judge([ranking], [gold], depth=10))[0])


def test_the_examples_in_the_docstring_hold() -> None:
    assert doctest.testmod(reward.metrics).failed == 0


@given(cases, ks)
def test_recall_counts_what_was_found(case: tuple[list[str], set[str]], k: int) -> None:
    ranking, gold = case
    assert one(f"recall@{k}", ranking, gold) == pytest.approx(sum(tool in ranking[:k] for tool in gold) / len(gold))


@given(cases, ks)
def test_comp_is_all_or_nothing(case: tuple[list[str], set[str]], k: int) -> None:
    ranking, gold = case
    assert one(f"comp@{k}", ranking, gold) == float(gold <= set(ranking[:k]))


@given(cases, ks)
def test_ndcg_is_gain_over_the_best_gain_any_order_could_have(case: tuple[list[str], set[str]], k: int) -> None:
    ranking, gold = case
    gain = sum(1 / log2(place + 2) for place, tool in enumerate(ranking[:k]) if tool in gold)
    ideal = sum(1 / log2(place + 2) for place in range(min(k, len(gold))))
    assert one(f"ndcg@{k}", ranking, gold) == pytest.approx(gain / ideal)


def test_the_ideal_of_ndcg_is_what_the_best_order_earns() -> None:
    for gold in ({"a"}, {"a", "b"}, {"a", "b", "c"}):
        for k in (1, 2, 4):
            best = max(one(f"ndcg@{k}", list(order), gold) for order in permutations("abcd"))
            assert best == pytest.approx(1.0)


@given(cases, ks)
def test_toolgens_ndcg_forgives_what_was_not_found(case: tuple[list[str], set[str]], k: int) -> None:
    ranking, gold = case
    hits = [tool in gold for tool in ranking[:k]]
    gain = sum(hit / log2(place + 2) for place, hit in enumerate(hits))
    ideal = sum(1 / log2(place + 2) for place in range(sum(hits)))
    assert one(f"ndcg_toolgen@{k}", ranking, gold) == pytest.approx(gain / ideal if ideal else 0.0)


def test_toolgens_ndcg_is_not_the_standard_one() -> None:
    assert one("ndcg_toolgen@5", ["a", "x"], {"a", "b"}) == 1.0
    assert one("ndcg@5", ["a", "x"], {"a", "b"}) == pytest.approx(0.6131, abs=1e-4)


@given(cases)
def test_mrr_is_one_over_the_first_hit(case: tuple[list[str], set[str]]) -> None:
    ranking, gold = case
    places = [place for place, tool in enumerate(ranking, 1) if tool in gold]
    assert one("mrr", ranking, gold) == pytest.approx(1 / places[0] if places else 0.0)


@given(st.permutations(TOOLS), st.sets(st.sampled_from(TOOLS), min_size=1), ks)
def test_scikit_learn_agrees(order: list[str], gold: set[str], k: int) -> None:
    truth = np.array([[float(tool in gold) for tool in TOOLS]])
    scores = np.array([[-float(order.index(tool)) for tool in TOOLS]])
    assert one(f"ndcg@{k}", order, gold) == pytest.approx(ndcg_score(truth, scores, k=k))
    found = np.array([[float(tool in order[:k]) for tool in TOOLS]])
    assert one(f"recall@{k}", order, gold) == pytest.approx(recall_score(truth, found, average="samples"))
    if len(gold) == 1:
        assert one("mrr", order, gold) == pytest.approx(label_ranking_average_precision_score(truth, scores))


@given(
    st.lists(cases, min_size=1, max_size=6), st.sampled_from(["recall@3", "ndcg@5", "comp@5", "mrr", "ndcg_toolgen@3"])
)
def test_many_at_once_are_as_one_by_one(many: list[tuple[list[str], set[str]]], metric: str) -> None:
    rankings, gold = [case[0] for case in many], [case[1] for case in many]
    together = measure(metric, judge(rankings, gold, depth=10))
    assert together.tolist() == [one(metric, *case) for case in many]


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="no gold tool"):
        judge([["a"]], [set()])
    with pytest.raises(ValueError, match="a tool twice"):
        judge([["a", "a"]], [{"a"}])
    for name in ("recall", "recall@0", "precision@5", "mrr@5", "ndcg@-1"):
        with pytest.raises(ValueError, match="no metric"):
            one(name, ["a"], {"a"})
    with pytest.raises(ValueError, match="deeper"):
        one("recall@11", ["a"], {"a"})
