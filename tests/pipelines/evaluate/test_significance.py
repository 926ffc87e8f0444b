from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipelines.evaluate.significance import bootstrap_intervals, holm, randomisation_test

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("shift", [0.0, 0.15, 0.4])
def test_p_is_the_share_of_relabellings_that_are_as_extreme(shift: float) -> None:
    differences = np.round(RNG.normal(shift, 0.3, size=(12, 1)), 2)
    observed = abs(differences.sum())
    exact = np.mean(
        [abs((np.array(signs) @ differences).item()) >= observed - 1e-9 for signs in product((-1, 1), repeat=12)]
    )
    assert randomisation_test(differences, rounds=20_000)[0] == pytest.approx(exact, abs=0.012)


def test_scipy_agrees() -> None:
    left, right = RNG.random(200), RNG.random(200) + 0.05
    theirs = stats.permutation_test(
        (right, left),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        n_resamples=9999,
        vectorized=True,
    )
    ours = randomisation_test((right - left)[:, None])[0]
    assert ours == pytest.approx(theirs.pvalue, abs=0.015)


def test_no_difference_is_no_evidence_and_p_is_never_zero() -> None:
    columns = np.stack([np.zeros(50), np.ones(50), np.tile([1.0, -1.0], 25)], axis=1)
    same, better, balanced = randomisation_test(columns, rounds=2000)
    assert same == 1.0
    assert better == pytest.approx(1 / 2001)
    assert balanced == 1.0


def test_under_the_null_hypothesis_small_p_values_are_rare() -> None:
    p_values = randomisation_test(RNG.normal(size=(60, 400)), rounds=1000)
    assert 0.02 < np.mean(p_values < 0.05) < 0.09


def test_the_same_seed_gives_the_same_answer() -> None:
    differences = RNG.normal(0.1, 1, size=(40, 3))
    assert randomisation_test(differences, seed=3).tolist() == randomisation_test(differences, seed=3).tolist()
    assert bootstrap_intervals(differences, seed=3).tolist() == bootstrap_intervals(differences, seed=3).tolist()


def test_bootstrap_intervals_are_scipys() -> None:
    values = RNG.random((300, 2)) ** 2
    ours = bootstrap_intervals(values, rounds=4000)
    for column, bounds in zip(values.T, ours, strict=True):
        theirs = stats.bootstrap((column,), np.mean, n_resamples=4000, method="percentile").confidence_interval
        assert bounds == pytest.approx([theirs.low, theirs.high], abs=0.008)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values: list[float]) -> None:
    corrected = holm(p_values)
    for level in (0.01, 0.05, 0.2):
        order = sorted(range(len(p_values)), key=p_values.__getitem__)
        rejected = set()
        for place, i in enumerate(order):
            if (len(p_values) - place) * p_values[i] > level:
                break
            rejected.add(i)
        assert {i for i, p in enumerate(corrected) if p <= level} == rejected


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
