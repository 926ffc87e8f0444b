"""Transfer of learned shifts to tools that were not trained, from trained tools with similar texts.

A trained tool j counts exp((cos(t, j) - 1) / WIDTH): 1 for the same text, .37 at a cosine of .9, .05 at .7. The weights
sum to 1 at most, so that a tool unlike all trained ones keeps the vector of its text.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH = 0.1
MAX_SOURCES = 8


def transferred_shifts(texts: Tensor, trained_texts: Tensor, shifts: Tensor, strength: float) -> Tensor:
    """(tools, dimensions) shifts for tools of these texts, from the shifts of trained tools."""
    if not len(trained_texts) or not len(texts) or not strength:
        return torch.zeros_like(texts)
    nearest = (texts @ trained_texts.T).topk(min(MAX_SOURCES, len(trained_texts)))
    weights = torch.exp((nearest.values.clamp(max=1.0) - 1) / WIDTH)
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1.0)
    return strength * torch.einsum("tl,tld->td", weights, shifts[nearest.indices])
