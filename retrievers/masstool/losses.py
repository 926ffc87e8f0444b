"""The losses: which tools, which views belong together, whether a tool at all."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

LIST = 10
"""Tools in one of the authors' lists: gold and uniform negatives."""
NEVER = -1e9
"""A logit that takes no part in a softmax, and gives no NaN where none does."""


def listwise(scores: Tensor, gold: Tensor, temperature: float) -> Tensor:
    """Cross entropy between softmax(scores / temperature) and the gold tools, each with an equal share."""
    targets = gold / gold.sum(1, keepdim=True)
    return -(targets * functional.log_softmax(scores / temperature, dim=-1)).sum(-1).mean()


def short_lists(scores: Tensor, gold: Tensor, generator: torch.Generator) -> Tensor:
    """The authors': a softmax over ten tools without a temperature, then a binary cross entropy on it."""
    order = torch.rand(scores.shape, generator=generator).to(scores.device) + gold
    chosen = order.topk(min(LIST, scores.shape[1])).indices
    shares = torch.softmax(scores.gather(1, chosen), dim=-1)
    targets = gold.gather(1, chosen)
    return functional.binary_cross_entropy(shares.clamp(1e-7, 1 - 1e-7), targets / targets.sum(1, keepdim=True))


def contrastive(left: Tensor, right: Tensor, temperature: float) -> Tensor:
    """InfoNCE: a row of one view and the same row of the other belong together. Rows of zeros take no part.

    They are masked and not cut out: a GPU would have to stop for their number, and to sort for the gradient.
    """
    there = (left.detach().square().sum(1) > 0) & (right.detach().square().sum(1) > 0)
    logits = functional.normalize(left, dim=-1) @ functional.normalize(right, dim=-1).T / temperature
    logits = logits.masked_fill(~there, NEVER)
    found = functional.cross_entropy(logits, torch.arange(len(left), device=left.device), reduction="none")
    return found.masked_fill(~there, 0.0).sum() / there.sum().clamp(min=1)


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
