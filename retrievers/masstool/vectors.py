"""Vectors of tools and queries, and the neighbours of queries."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Nearest pool queries of some queries."""

    rows: Tensor
    """(queries, neighbours) rows of the pool"""
    cosines: Tensor
    valid: Tensor
    """False where there is no neighbour."""


@dataclass(frozen=True, slots=True)
class ToolVectors:
    """Vectors of all tools."""

    vectors: Tensor
    """z: (tools, dimensions) unit vectors that scores are taken with"""
    signals: Tensor
    """y: (tools + 1, dimensions) what tools contribute to queries that need them; the last row is zero"""
    unnormalized: Tensor
    """`vectors` before normalization"""


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """Vectors of some queries."""

    vectors: Tensor
    """u: (queries, dimensions)"""
    views: tuple[Tensor, Tensor]
    """Tool view and scene view, for the contrastive loss."""
