"""Draws the batches of an epoch, with graph views, neighbours, candidates and labels, for many steps at once.

The numbers of one step are small: a GPU takes longer to launch their kernels than to compute them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from retrievers.masstool.graph import Edges, GraphView, distinct, draw_dropout, dropout_views
from retrievers.masstool.vectors import Neighbours

MAX_EDGES = 4_000_000
"""Edges drawn together, over all steps."""
EDGE_DROPOUT = 0.2
MAX_CANDIDATES = 4096
"""Tools in the softmax: all that some training query needs, or else gold and a random fill."""
LABELS = 256
"""Labelled queries per step, half of them needing a tool."""


@dataclass(frozen=True, slots=True)
class Step:
    """One batch of training queries."""

    rows: Tensor
    view: GraphView
    near: Neighbours
    first: Tensor
    """First position in the batch of each of its scenes."""
    scenes: Tensor
    """The scenes of `first`."""
    fill: Tensor | None
    """Random candidates beside the batch's own tools; None: all are candidates."""
    labels: Tensor | None
    """Labelled queries; None: not drawn."""


@dataclass(frozen=True, slots=True)
class StepSampler:
    """Draws training steps."""

    edges: Edges
    near: Neighbours
    """Neighbours of every training query, with some to spare."""
    neighbours: int
    batch_size: int
    num_candidates: int
    """Tools that some training query needs."""
    sides: Sequence[Tensor]
    """Labelled queries that need a tool, and others; empty where no labels are drawn."""

    def steps(self, order: Tensor, generator: torch.Generator) -> Iterator[Step]:
        """Batches of training queries in this order, each held out of graph and pool."""
        batches = torch.split(order, self.batch_size)
        draw_dropout(self.edges, generator)  # not used here; it keeps the draws that follow as they were
        count = max(1, MAX_EDGES // (self.edges.tools.numel() + len(self.edges.tools)))
        for start in range(0, len(batches), count):
            yield from self._block(batches[start : start + count], generator)

    def _block(self, batches: Sequence[Tensor], generator: torch.Generator) -> Iterator[Step]:
        draws, fills, labels = [], [], []
        for _ in batches:  # step by step, so that the block size does not change the draws
            draws.append(draw_dropout(self.edges, generator))
            fills.append(self.draw_fill(generator))
            labels += [draw_labels(self.sides, generator)] if self.sides else []
        rows, device = torch.cat(list(batches)), self.edges.tools.device
        sizes = [len(batch) for batch in batches]
        numbers = torch.arange(len(batches), device=device)
        batch_of = torch.full((len(self.edges.tools),), -1, dtype=torch.long, device=device)
        batch_of[rows] = own = numbers.repeat_interleave(self.batch_size)[: len(rows)]
        views = dropout_views(self.edges, batch_of == numbers[:, None], EDGE_DROPOUT, draws)
        labelled = label_rows(self.sides, labels).unbind() if labels else [None] * len(batches)
        near = select_neighbours(self.near, rows, batch_of, self.neighbours)
        nears = zip(*(torch.split(part, sizes) for part in (near.rows, near.cosines, near.valid)), strict=True)
        scenes, first = distinct(own * self.edges.num_scenes + self.edges.scenes[rows])
        counts = torch.bincount(scenes // self.edges.num_scenes, minlength=len(batches)).tolist()
        parts = (torch.split(part, counts) for part in (first % self.batch_size, scenes % self.edges.num_scenes))
        for step in zip(batches, views, (Neighbours(*one) for one in nears), *parts, fills, labelled, strict=True):
            yield Step(*step)

    def draw_fill(self, generator: torch.Generator) -> Tensor | None:
        """Random candidates, where not all fit."""
        if self.num_candidates <= MAX_CANDIDATES:
            return None
        order = torch.randperm(self.num_candidates, generator=generator, device=self.edges.tools.device)
        return order[:MAX_CANDIDATES]


def select_neighbours(near: Neighbours, rows: Tensor, batch_of: Tensor | None, count: int) -> Neighbours:
    """Nearest neighbours of these rows, those of the same batch left out where `batch_of` is given."""
    others, cosines, valid = (part[rows] for part in (near.rows, near.cosines, near.valid))
    if batch_of is None:
        return Neighbours(others[:, :count], cosines[:, :count], valid[:, :count])
    valid = valid & (batch_of[others] != batch_of[rows][:, None])
    order = (~valid).to(torch.int8).argsort(dim=1, stable=True)[:, :count]
    return Neighbours(others.gather(1, order), cosines.gather(1, order), valid.gather(1, order))


def draw_labels(sides: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Random positions in both sides, as many of one as of the other."""
    half, device = LABELS // 2, sides[0].device
    return [torch.randint(len(side), (half,), generator=generator, device=device) for side in sides]


def label_rows(sides: Sequence[Tensor], draws: Sequence[Sequence[Tensor]]) -> Tensor:
    """(draws, labels) rows of labelled queries, the first half of each draw needing a tool."""
    positions = [torch.stack(side) for side in zip(*draws, strict=True)]
    return torch.cat([side[chosen] for side, chosen in zip(sides, positions, strict=True)], dim=1)
