"""What a tool that training never met is given: its text places it, tools that read like it lend what they learned.

A lender j counts exp((cos(t, j) - 1) / WIDTH): 1 for the same text, .37 at a cosine of .9, .05 at .7. The sum is never
more than one whole lender's, so that a tool like nothing known stays where its text put it.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH = 0.1
LENDERS = 8


def shares(texts: Tensor, lenders: Tensor) -> tuple[Tensor, Tensor]:
    """(tools, lenders asked) rows and shares."""
    most = min(LENDERS, len(lenders))
    best = (texts @ lenders.T).topk(most)
    counts = torch.exp((best.values.clamp(max=1.0) - 1) / WIDTH)
    return best.indices, counts / counts.sum(1, keepdim=True).clamp(min=1.0)


def lent(texts: Tensor, lenders: Tensor, shifts: Tensor, strength: float) -> Tensor:
    """(tools, dimensions): how far tools of these texts are shifted by what the lenders were shifted."""
    if not len(lenders) or not len(texts) or not strength:
        return torch.zeros_like(texts)
    rows, weights = shares(texts, lenders)
    return strength * torch.einsum("tl,tld->td", weights, shifts[rows])
