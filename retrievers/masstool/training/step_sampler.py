"""What every step of an epoch meets that does not hang on what is learned: drawn and worked out for many steps at once.

The numbers of a step are small, and a GPU takes longer to be told of them than to compute them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from retrievers.masstool.graph import Edges, View, distinct, draw, without
from retrievers.masstool.model import Near
from retrievers.masstool.settings import MassToolSettings

AT_ONCE = 4_000_000
"""Edges that are drawn together, over all steps."""
LABELS = 256
"""Labelled queries in a step, half of them needing a tool."""


@dataclass(frozen=True, slots=True)
class Step:
    """One batch of training queries."""

    anchors: Tensor
    seen: View
    near: Near
    """Of the anchors, outside the batch unless faithful."""
    first: Tensor
    """Places in the batch where its scenes stand first, one a scene."""
    scenes: Tensor
    """These scenes."""
    fill: Tensor | None
    """Candidates beside the batch's own tools; None: all are looked at."""
    labels: Tensor | None
    """Labelled queries that are asked; None: none yet."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """What steps are drawn from."""

    edges: Edges
    near: Near
    """Of every training query, with some to spare."""
    settings: MassToolSettings
    needed: int
    """Tools that some training query needs."""
    sides: Sequence[Tensor]
    """Labelled queries that need a tool, and others; empty where they are not asked."""

    def steps(self, order: Tensor, generator: torch.Generator) -> Iterator[Step]:
        """The batches of training queries in this order."""
        train, edges = self.settings.train, self.edges
        assert train is not None
        batches = torch.split(order, train.batch_size)
        # Drawn in any case: what follows must not hang on who looks at it.
        whole = draw(edges, generator)
        nobody = torch.zeros(1, len(edges.tools), dtype=torch.bool, device=order.device)
        seen = without(edges, nobody, train.edge_dropout, [whole]) if self.settings.faithful else []
        # The authors' loss draws as well, between one step and the next.
        count = 1 if self.settings.faithful else max(1, AT_ONCE // (edges.tools.numel() + len(edges.tools)))
        for start in range(0, len(batches), count):
            yield from self._block(batches[start : start + count], seen, generator)

    def _block(self, batches: Sequence[Tensor], seen: Sequence[View], generator: torch.Generator) -> Iterator[Step]:
        """Some steps at once. `seen`: the authors' graph, which is the same for all; else each has its own."""
        train, faithful = self.settings.train, self.settings.faithful
        assert train is not None
        graphs, fills, labels = [], [], []
        for _ in batches:  # one step after the other, however many are drawn together
            graphs += [] if faithful else [draw(self.edges, generator)]
            fills.append(self._fill(train.candidates, generator))
            labels += [draw_labels(self.sides, generator)] if self.sides and not faithful else []
        anchors, device = torch.cat(list(batches)), self.edges.tools.device
        sizes = [len(each) for each in batches]
        numbers = torch.arange(len(batches), device=device)
        batch = torch.full((len(self.edges.tools),), -1, dtype=torch.long, device=device)
        batch[anchors] = own = numbers.repeat_interleave(train.batch_size)[: len(anchors)]
        held_out = batch == numbers[:, None]
        own_graphs = [] if faithful else without(self.edges, held_out, train.edge_dropout, graphs)
        asked = labelled(self.sides, labels).unbind() if labels else [None] * len(batches)
        near = outside(self.near, anchors, None if faithful else batch, self.settings.neighbours)
        nears = zip(*(torch.split(each, sizes) for each in (near.rows, near.cosines, near.valid)), strict=True)
        scenes, first = distinct(own * self.edges.sets + self.edges.scenes[anchors])
        counts = torch.bincount(scenes // self.edges.sets, minlength=len(batches)).tolist()
        scene_parts = (torch.split(each, counts) for each in (first % train.batch_size, scenes % self.edges.sets))
        graph = own_graphs or [*seen] * len(batches)
        for each in zip(batches, graph, (Near(*one) for one in nears), *scene_parts, fills, asked, strict=True):
            yield Step(*each)

    def _fill(self, most: int, generator: torch.Generator) -> Tensor | None:
        if self.needed <= most:
            return None
        return torch.randperm(self.needed, generator=generator, device=self.edges.tools.device)[:most]


def outside(near: Near, anchors: Tensor, batch: Tensor | None, count: int) -> Near:
    """The anchors' nearest neighbours; where the batch of every query is told, those that are not in the same."""
    rows, cosines, valid = (each[anchors] for each in (near.rows, near.cosines, near.valid))
    if batch is None:
        return Near(rows[:, :count], cosines[:, :count], valid[:, :count])
    valid = valid & (batch[rows] != batch[anchors][:, None])
    order = (~valid).to(torch.int8).argsort(dim=1, stable=True)[:, :count]
    return Near(rows.gather(1, order), cosines.gather(1, order), valid.gather(1, order))


def draw_labels(sides: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Places in both sides of the labelled queries, as many of one as of the other."""
    half, device = LABELS // 2, sides[0].device
    return [torch.randint(len(side), (half,), generator=generator, device=device) for side in sides]


def labelled(sides: Sequence[Tensor], drawn: Sequence[Sequence[Tensor]]) -> Tensor:
    """(draws, labels): rows of labelled queries, the first half of each draw needing a tool."""
    places = [torch.stack(each) for each in zip(*drawn, strict=True)]
    return torch.cat([side[each] for side, each in zip(sides, places, strict=True)], dim=1)
