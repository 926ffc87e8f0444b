"""Sparse matrix from training queries to their tools."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from retrievers.masstool.graph import Edges, gold_shares


class VoteMatrix:
    """Distributes the weight of each training query equally over its tools."""

    def __init__(self, edges: Edges) -> None:
        self.edges, self.shares = edges, gold_shares(edges)
        self.by_tool = self.shares.flatten()[edges.by_tool]

    def __call__(self, weights: Tensor) -> Tensor:
        """(rows, tools) votes from weights (rows, training queries)."""
        votes: Tensor = _SparseProduct.apply(weights, self)  # type: ignore[no-untyped-call]
        return votes


class _SparseProduct(torch.autograd.Function):
    """Product with a sparse matrix. The table of edges is its transpose already, which the gradient needs: torch's own
    sparse product transposes and sorts again for every gradient."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, matrix: VoteMatrix) -> Tensor:
        ctx.matrix, edges = matrix, matrix.edges
        columns = weights.T.contiguous()
        return functional.embedding_bag(
            edges.edge_queries,
            columns,
            edges.tool_starts,
            per_sample_weights=matrix.by_tool.to(columns.dtype),
            mode="sum",
        ).T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        padded = functional.pad(gradient.T, (0, 0, 0, 1))  # padding in the table of edges has no gradient
        shares = ctx.matrix.shares.to(padded.dtype)
        return functional.embedding_bag(ctx.matrix.edges.tools, padded, per_sample_weights=shares, mode="sum").T, None
