"""Significance: paired randomisation tests, bootstrap intervals, Holm's correction.

Both tests are one matrix product per block, random signs or resampling weights times per-query values, for all
systems and metrics at once. Ten thousand rounds over a thousand queries and forty columns take about a second.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ROUNDS = 10_000
BLOCK = 500


def randomisation_test(differences: np.ndarray, seed: int = 0, rounds: int = ROUNDS) -> np.ndarray:
    """Two-sided p-values (columns,) for per-query differences (queries, columns).

    Under the null hypothesis each query's difference could as well have the other sign. The observed labelling is
    one of the possible ones and counts, so that p is never 0.
    """
    rng = np.random.default_rng(seed)
    queries = len(differences)
    observed = np.abs(differences.sum(axis=0))
    # Sums of the same numbers in another order differ in their last bits; that must not make a tie a loss.
    edge = observed - 1e-9 * np.maximum(1.0, np.abs(differences).sum(axis=0))
    extreme = np.zeros(differences.shape[1])
    for start in range(0, rounds, BLOCK):
        count = min(BLOCK, rounds - start)
        signs = rng.integers(0, 2, size=(count, queries), dtype=np.int8) * 2.0 - 1.0
        extreme += (np.abs(signs @ differences) >= edge).sum(axis=0)
    p_values: np.ndarray = (extreme + 1) / (rounds + 1)
    return p_values


def bootstrap_intervals(values: np.ndarray, seed: int = 0, rounds: int = 2_000, level: float = 0.95) -> np.ndarray:
    """Percentile intervals (columns, 2) of the means of per-query values (queries, columns)."""
    rng = np.random.default_rng(seed)
    queries = len(values)
    means = []
    for start in range(0, rounds, BLOCK):
        count = min(BLOCK, rounds - start)
        weights = rng.multinomial(queries, np.full(queries, 1 / queries), size=count)
        means.append(weights.astype(np.float64) @ values / queries)
    tail = (1 - level) / 2 * 100
    bounds: np.ndarray = np.percentile(np.concatenate(means), [tail, 100 - tail], axis=0).T
    return bounds


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for the number of comparisons (Holm, 1979)."""
    corrected = [0.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        running = max(running, (len(p_values) - rank) * p_values[i])
        corrected[i] = min(1.0, running)
    return corrected
