"""Vectors of unit length in one kernel."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

EPSILON = 1e-24
"""Added to the mean square, so that a row of zeros stays one."""


def normalize(values: Tensor, length: float = 1.0) -> Tensor:
    """Scale each row to `length`.

    `functional.normalize` takes three kernels on a GPU and a dozen for its gradient, an RMS norm one each; in steps as
    small as the heads', launching kernels takes most of the time.
    """
    width = values.shape[-1]
    return functional.rms_norm(values, (width,), values.new_full((width,), length * width**-0.5), EPSILON)
