"""Losses of retrieval, contrast and detection."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from retrievers.masstool.normalize import normalize
from retrievers.masstool.serving.heads import MASKED

IGNORED = -100
"""Target of a row that does not count."""
LIST_LENGTH = 10
"""Tools in one of the authors' lists."""


def listwise(scores: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Cross entropy between softmax(scores / temperature) and the shares of the gold tools, which sum to 1."""
    return functional.cross_entropy(scores / temperature, targets)


def short_lists(scores: Tensor, gold: Tensor, generator: torch.Generator) -> Tensor:
    """Softmax over ten tools, gold ones and uniform negatives, without a temperature; a binary cross entropy on it."""
    order = torch.rand(scores.shape, generator=generator, device=scores.device) + gold
    chosen = order.topk(min(LIST_LENGTH, scores.shape[1])).indices
    shares = torch.softmax(scores.gather(1, chosen), dim=-1)
    targets = gold.gather(1, chosen)
    return functional.binary_cross_entropy(shares.clamp(1e-7, 1 - 1e-7), targets / targets.sum(1, keepdim=True))


def contrastive(left: Tensor, right: Tensor, temperature: float) -> Tensor:
    """InfoNCE between two views of the same rows. Rows of zeros are masked, not cut out: a GPU would have to sync."""
    present = left.detach().any(1) & right.detach().any(1)
    logits = normalize(left, 1 / temperature) @ normalize(right).T + MASKED * ~present
    targets = torch.where(present, torch.arange(len(left), device=left.device), IGNORED)
    total = functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    return total / present.sum().clamp(min=1)


def detection(logits: Tensor, needs: Tensor) -> Tensor:
    """Binary cross entropy of needing a tool."""
    return functional.binary_cross_entropy_with_logits(logits, needs.to(logits.dtype))


def balanced_detection(logits: Tensor, needs: Tensor) -> Tensor:
    """Detection loss with the same total weight for both kinds of queries."""
    return (detection(logits[needs], needs[needs]) + detection(logits[~needs], needs[~needs])) / 2
