"""The map from evidence to a probability: a logistic regression that no higher score can lower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RIDGE = 1e-3
"""Weight of the squared coefficients (of standardised columns): keeps them finite where a few queries are separable."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Weights of the evidence for one retriever."""

    intercept: float
    weights: tuple[float, ...]
    """One per column of `EvidenceReader`."""
    min_score: float = 0.0
    """The threshold that dev chose: the highest one that loses few right answers."""

    def probabilities(self, evidence: np.ndarray) -> np.ndarray:
        """(tools,) of evidence (tools, columns): estimated probability that the request needs each tool."""
        logits: np.ndarray = self.intercept + evidence @ np.array(self.weights)
        return sigmoid(logits)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    probabilities: np.ndarray = np.exp(-np.logaddexp(0.0, -logits))
    return probabilities


def fit(evidence: np.ndarray, needed: np.ndarray, weights: np.ndarray, rising: Sequence[bool]) -> Calibration:
    """Maximise the weighted likelihood; coefficients of rising columns are at least 0."""
    from scipy.optimize import minimize

    mean, spread = evidence.mean(axis=0), evidence.std(axis=0)
    spread[spread < 1e-12] = 1.0
    columns, weights = (evidence - mean) / spread, weights / weights.sum()

    def loss(coefficients: np.ndarray) -> tuple[float, np.ndarray]:
        logits = coefficients[0] + columns @ coefficients[1:]
        errors = weights * (sigmoid(logits) - needed)
        value = weights @ (np.logaddexp(0.0, logits) - needed * logits) + RIDGE * coefficients[1:] @ coefficients[1:]
        gradient = np.concatenate([[errors.sum()], columns.T @ errors + 2 * RIDGE * coefficients[1:]])
        return float(value), gradient

    bounds = [(None, None), *((0.0 if rises else None, None) for rises in rising)]
    best = minimize(loss, np.zeros(len(bounds)), jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-12})
    slopes = best.x[1:] / spread
    return Calibration(float(best.x[0] - slopes @ mean), tuple(map(float, slopes)))
