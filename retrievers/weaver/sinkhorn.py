"""Even shares: the plan that sends every tool to codes it is near, with the same load on every code.

Entropic optimal transport by Sinkhorn and Knopp. Costs are brought into -1..1 first, so that `epsilon` means the same
for any catalogue. In double precision the scaling vectors need no logarithms down to epsilon .003.
"""

from __future__ import annotations

import torch
from torch import Tensor


def prices(costs: Tensor, epsilon: float, iterations: int) -> Tensor:
    """(codes,): what each code has to cost beside (tools, codes) `costs` for the load to be even.

    The code of the largest share in the plan is the cheapest with its price.
    """
    scaled, amplitude = _scaled(costs)
    columns = _scaling(scaled, epsilon, iterations)[1]
    return (-epsilon * amplitude * columns.log()).to(costs)


def plan(costs: Tensor, epsilon: float, iterations: int) -> Tensor:
    """(tools, codes): rows sum to 1, columns to tools / codes as nearly as the iterations reach."""
    scaled, _ = _scaled(costs)
    rows, columns = _scaling(scaled, epsilon, iterations)
    return rows[:, None] * torch.exp(-scaled / epsilon) * columns[None]


def _scaled(costs: Tensor) -> tuple[Tensor, Tensor]:
    costs = costs.double()
    middle = (costs.max() + costs.min()) / 2
    amplitude = (costs.max() - middle).clamp(min=1e-12)
    return (costs - middle) / amplitude, amplitude


def _scaling(scaled: Tensor, epsilon: float, iterations: int) -> tuple[Tensor, Tensor]:
    kernel = torch.exp(-scaled / epsilon)
    load = scaled.shape[0] / scaled.shape[1]
    columns = scaled.new_ones(scaled.shape[1])
    for _ in range(iterations):
        rows = 1 / (kernel @ columns)
        columns = load / (rows @ kernel)
    return 1 / (kernel @ columns), columns
