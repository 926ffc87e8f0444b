"""The losses: which tools, which views belong together, whether a tool at all."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from retrievers.masstool.normalize import unit

LIST = 10
"""Tools in one of the authors' lists: gold and uniform negatives."""
NEVER = -1e9
"""A logit that takes no part in a softmax, and gives no NaN where none does."""
NOBODY = -100
"""A target that is passed over."""


def listwise(scores: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Cross entropy between softmax(scores / temperature) and the gold tools' shares, which add up to 1."""
    return functional.cross_entropy(scores / temperature, targets)


def short_lists(scores: Tensor, gold: Tensor, generator: torch.Generator) -> Tensor:
    """The authors': a softmax over ten tools without a temperature, then a binary cross entropy on it."""
    order = torch.rand(scores.shape, generator=generator, device=scores.device) + gold
    chosen = order.topk(min(LIST, scores.shape[1])).indices
    shares = torch.softmax(scores.gather(1, chosen), dim=-1)
    targets = gold.gather(1, chosen)
    return functional.binary_cross_entropy(shares.clamp(1e-7, 1 - 1e-7), targets / targets.sum(1, keepdim=True))


def contrastive(left: Tensor, right: Tensor, temperature: float) -> Tensor:
    """InfoNCE: a row of one view and the same row of the other belong together. Rows of zeros take no part.

    They are masked and not cut out: a GPU would have to stop for their number, and to sort for the gradient.
    """
    there = left.detach().any(1) & right.detach().any(1)
    logits = unit(left, 1 / temperature) @ unit(right).T + NEVER * ~there
    wanted = torch.where(there, torch.arange(len(left), device=left.device), NOBODY)
    found = functional.cross_entropy(logits, wanted, ignore_index=NOBODY, reduction="sum")
    return found / there.sum().clamp(min=1)


def detection(logits: Tensor, needs: Tensor, faithful: bool) -> Tensor:
    """Does the query need a tool? `faithful`: the softmax goes through the softmax of the cross entropy once more."""
    if faithful:
        return functional.cross_entropy(torch.softmax(logits, dim=-1), needs.long())
    return functional.binary_cross_entropy_with_logits(logits, needs.to(logits.dtype))


def balanced(logits: Tensor, needs: Tensor) -> Tensor:
    """The detection loss with both kinds of queries counting the same, however many there are."""
    return (detection(logits[needs], needs[needs], False) + detection(logits[~needs], needs[~needs], False)) / 2


def probabilities(logits: Tensor) -> Tensor:
    """Of needing a tool."""
    return torch.softmax(logits, dim=-1)[:, 1] if logits.ndim == 2 else torch.sigmoid(logits)
