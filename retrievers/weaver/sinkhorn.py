"""Balanced assignment: prices that make tools use all codes equally (entropic optimal transport, Sinkhorn-Knopp).

Costs are scaled to -1..1 first, so that EPSILON means the same for any catalogue. In double precision the scaling
vectors need no logarithms down to an epsilon of .003.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 0.01
"""Smaller: more even, and further from the nearest code."""
ITERATIONS = 50


def balancing_prices(costs: Tensor, epsilon: float = EPSILON, iterations: int = ITERATIONS) -> Tensor:
    """(codes,): the price to add to each code's (tools, codes) costs so that the load is even.

    The code with the largest share in the transport plan is the cheapest with its price.
    """
    exact = costs.double()
    middle = (exact.max() + exact.min()) / 2
    amplitude = (exact.max() - middle).clamp(min=1e-12)
    kernel = torch.exp(-((exact - middle) / amplitude) / epsilon)
    load = costs.shape[0] / costs.shape[1]
    columns = kernel.new_ones(costs.shape[1])
    for _ in range(iterations):
        rows = 1 / (kernel @ columns)
        columns = load / (rows @ kernel)
    return (-epsilon * amplitude * columns.log()).to(costs)
