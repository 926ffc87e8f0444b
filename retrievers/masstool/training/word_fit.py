"""Logistic regression over hashed words, for the detector. The fit is deterministic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor

from retrievers.masstool.hashed_words import BUCKETS, bags

STRENGTH = 30.0
"""Inverse of the ridge penalty, on the sum of losses."""
STEPS = 60


def fit_words(texts: Sequence[str], needs: Tensor) -> Tensor:
    """(buckets + 1,) weights and, last, the bias. Both kinds of texts have the same total weight."""
    x, y = bags(texts), needs.cpu().numpy().astype(np.float64)
    shares = STRENGTH * len(y) / 2 * np.where(y > 0, 1 / y.sum(), 1 / (1 - y).sum())
    transposed = x.T.tocsr()

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        logits = x @ values[:-1] + values[-1]
        slope = shares * (expit(logits) - y)
        error = float(shares @ np.logaddexp(0, np.where(y > 0, -logits, logits)))
        ridge = values[:-1]
        return error + 0.5 * float(ridge @ ridge), np.append(transposed @ slope + ridge, slope.sum())

    fitted = minimize(loss, np.zeros(BUCKETS + 1), jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    return torch.from_numpy(fitted.x).float()
