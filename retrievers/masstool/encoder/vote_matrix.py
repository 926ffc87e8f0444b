"""How training queries vote: each for its own tools, with a vote that these share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from retrievers.masstool.graph import Edges, shares


class Ballot:
    """Who votes for what."""

    def __init__(self, edges: Edges) -> None:
        self.edges, self.shares = edges, shares(edges)
        self.by_tool = self.shares.flatten()[edges.by_tool]

    def __call__(self, weights: Tensor) -> Tensor:
        """(askers, tools), out of how much each voter counts, (askers, voters)."""
        found: Tensor = _Counted.apply(weights, self)  # type: ignore[no-untyped-call]
        return found


class _Counted(torch.autograd.Function):
    """A product with a sparse matrix; its gradient, one with the transposed, which the table of edges already is.

    Left to itself a sparse matrix is turned and sorted again for every gradient.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, ballot: Ballot) -> Tensor:
        ctx.ballot, edges = ballot, ballot.edges
        turned, each = weights.T.contiguous(), ballot.by_tool
        return functional.embedding_bag(
            edges.givers, turned, edges.tool_starts, per_sample_weights=each.to(turned.dtype), mode="sum"
        ).T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        padded = functional.pad(gradient.T, (0, 0, 0, 1))  # what is padding in the edges' table has no gradient
        each = ctx.ballot.shares.to(padded.dtype)
        return functional.embedding_bag(ctx.ballot.edges.tools, padded, per_sample_weights=each, mode="sum").T, None
