"""The map from evidence to probabilities: monotone, and the fit that another library finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from retrievers.calibration.logistic import RIDGE, Calibration, fit
from retrievers.calibration.relevance import GROUP, relevance
from retrievers.calibration.shipped import WEIGHTS, shipped_calibration

BM25, DENSE = {"kind": "bm25"}, {"kind": "dense", "model": "bundled:minilm", "train": None}
numbers = st.floats(-50, 50)


def examples(seed: int, slopes: tuple[float, ...], count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    evidence = chance.normal(size=(count, len(slopes))) * 3 + 1
    logits = evidence @ np.array(slopes) - 1
    return evidence, (chance.random(count) < 1 / (1 + np.exp(-logits))).astype(np.float64)


@pytest.mark.parametrize("seed", range(5))
def test_the_fit_is_that_of_scikit_learn(seed: int) -> None:
    evidence, needed = examples(seed, (0.8, -0.3, 0.1))
    weights = np.random.default_rng(seed).random(len(needed))
    ours = fit(evidence, needed, weights, [False] * 3)
    scaled = (evidence - evidence.mean(axis=0)) / evidence.std(axis=0)
    theirs = LogisticRegression(C=1 / (2 * RIDGE), tol=1e-10, max_iter=1000)
    theirs.fit(scaled, needed, sample_weight=weights / weights.sum())
    assert ours.probabilities(evidence) == pytest.approx(theirs.predict_proba(scaled)[:, 1], abs=1e-4)


def test_a_rising_column_gets_no_negative_weight() -> None:
    evidence, needed = examples(0, (0.8, -0.5))
    free, bounded = (fit(evidence, needed, np.ones(400), [True, rises]) for rises in (False, True))
    assert free.weights[1] < -0.3
    assert bounded.weights[1] == 0
    alone = fit(evidence[:, :1], needed, np.ones(400), [True])
    assert bounded.probabilities(evidence) == pytest.approx(alone.probabilities(evidence[:, :1]), abs=1e-4)


def test_separable_queries_give_finite_weights_and_a_constant_column_none() -> None:
    evidence = np.stack([np.arange(20.0), np.full(20, 7.0)], axis=1)
    made = fit(evidence, (np.arange(20) >= 10).astype(np.float64), np.ones(20), [True, True])
    assert np.isfinite([made.intercept, *made.weights]).all()
    assert made.weights[0] > 0
    assert made.weights[1] == 0


@settings(max_examples=50)
@given(rows=st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=8), more=st.floats(0, 100))
def test_more_of_a_rising_column_never_makes_a_tool_less_probable(
    rows: list[tuple[float, float, float]], more: float
) -> None:
    evidence, needed = examples(3, (0.4, -0.6, 0.2))
    made = fit(evidence, needed, np.ones(len(needed)), [True, False, True])
    lower = np.array(rows)
    for column in (0, 2):
        higher = lower.copy()
        higher[:, column] += more
        assert (made.probabilities(higher) >= made.probabilities(lower)).all()
    values = made.probabilities(lower * 1e6)
    assert ((values >= 0) & (values <= 1)).all()


@given(st.lists(st.floats(0, 1), max_size=23))
def test_relevance_is_that_of_a_group_and_never_rises(probabilities: list[float]) -> None:
    values = relevance(probabilities)
    assert len(values) == len(probabilities)
    assert values == sorted(values, reverse=True)
    groups = [probabilities[start : start + GROUP] for start in range(0, len(probabilities), GROUP)]
    for number, value in enumerate(values):
        later = []
        for group in groups[number // GROUP :]:
            none = 1.0
            for probability in group:
                none *= 1 - probability
            later.append(1 - none)
        assert value == pytest.approx(max(later), abs=1e-6)
    if 1.0 in probabilities:
        assert values[probabilities.index(1.0)] == 1
    assert relevance(probabilities, group=1) == pytest.approx(
        [max(probabilities[number:]) for number in range(len(probabilities))], abs=1e-6
    )


def test_calibrations_ship_for_what_needs_no_training() -> None:
    chance = np.random.default_rng(0)
    lexical, dense, rank = chance.random((4, 3)), chance.random((4, 2)), chance.random((4, 1))
    one, other = shipped_calibration([BM25, DENSE]), shipped_calibration([DENSE, BM25])
    assert one is not None
    assert other is not None
    assert one.probabilities(np.hstack([lexical, dense, rank])) == pytest.approx(
        other.probabilities(np.hstack([dense, lexical, rank]))
    )
    assert shipped_calibration([BM25]) is not None
    assert shipped_calibration([{**DENSE, "kind": "milvus"}]) == shipped_calibration([DENSE])
    for strange in ({**DENSE, "model": "other"}, {**DENSE, "train": {"epochs": 1}}, {"kind": "masstool"}):
        assert shipped_calibration([strange]) is None
        assert shipped_calibration([BM25, strange]) is None
    for intercept, parts, rank_weight, min_score in WEIGHTS.values():
        assert np.isfinite(intercept)
        assert 0 < min_score < 1
        assert rank_weight > 0
        for weights in parts:  # scores, then the mean of the first ten, which a score is compared with
            assert min(weights[:-1]) > 0.05 > weights[-1]


def test_probabilities_are_one_per_tool() -> None:
    made = Calibration(0.5, (1.0, -2.0), 0.2)
    assert made.probabilities(np.zeros((0, 2))).shape == (0,)
    assert made.probabilities(np.array([[0.0, 0.0]])) == pytest.approx([1 / (1 + np.exp(-0.5))])
