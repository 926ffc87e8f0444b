"""Vectors of length 1, in one kernel."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

LEAST = 1e-24
"""Added to the mean square: a row of zeros stays one."""


def unit(values: Tensor, length: float = 1.0) -> Tensor:
    """Every row with this length.

    `functional.normalize` is three kernels on a GPU and a dozen for the gradient, a norm by root mean squares is one
    and one; where steps are as small as the heads', launching kernels is what takes the time.
    """
    width = values.shape[-1]
    return functional.rms_norm(values, (width,), values.new_full((width,), length * width**-0.5), LEAST)
