"""Transfer of learned shifts to tools that were not trained, in training (serving/similar_tools.py)."""

from __future__ import annotations

import torch
from torch import Tensor

from retrievers.masstool.serving.similar_tools import MAX_SOURCES, WIDTH


def transferred_shifts(texts: Tensor, trained_texts: Tensor, shifts: Tensor, strength: float) -> Tensor:
    """(tools, dimensions) shifts for tools of these texts, from the shifts of trained tools."""
    if not len(trained_texts) or not len(texts) or not strength:
        return torch.zeros_like(texts)
    nearest = (texts @ trained_texts.T).topk(min(MAX_SOURCES, len(trained_texts)))
    weights = torch.exp((nearest.values.clamp(max=1.0) - 1) / WIDTH)
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1.0)
    return strength * torch.einsum("tl,tld->td", weights, shifts[nearest.indices])
