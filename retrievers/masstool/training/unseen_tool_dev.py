"""Dev as it is for tools that nobody has asked for yet.

Dev queries are cut from training ones, so each of their tools has been asked for. Where most of a catalogue has not
been, dev praises votes that would carry every request towards the few tools that are known. So tools that training
needs are struck out, half of them at a time: their queries leave pool and graph, what was learned for them is
forgotten, others lend to them as to any new tool; and dev queries that need one of them are asked again. How much that
counts is `train.unasked`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from retrievers.masstool.graph import View, make_edges, view
from retrievers.masstool.model import Heads, Near
from retrievers.masstool.settings import MassToolSettings
from retrievers.masstool.training.tensors import Judge, Lessons, judge, nearest


@dataclass(frozen=True, slots=True)
class _Half:
    """A catalogue where half of the known tools are new."""

    dev: Tensor
    """Vectors of the queries that need one of them."""
    near: Near
    seen: View
    lenders: Tensor
    """Rows of the tools that are still known."""
    judge: Judge


class Unasked:
    """Asks dev queries as if their tools were new."""

    def __init__(self, lessons: Lessons, settings: MassToolSettings, share: float) -> None:
        self.lessons, self.share, self.halves = lessons, share, list[_Half]()
        needed = sorted({row for each in lessons.gold for row in each})
        if not share or len(needed) < 2:
            return
        assert settings.train is not None
        order = torch.randperm(len(needed), generator=torch.Generator().manual_seed(settings.train.seed)).tolist()
        for new in (order[::2], order[1::2]):
            half = _half(lessons, {needed[place] for place in new}, settings.neighbours)
            if half is not None:
                self.halves.append(half)

    @torch.no_grad()
    def __call__(self, heads: Heads) -> float | None:
        """The mean metric of such queries; None: it does not count, or nothing can be struck out."""
        if not self.halves:
            return None
        heads.eval()
        found, count = 0.0, 0
        for half in self.halves:
            tools = heads.tools(self.lessons.tools, self.lessons.train, half.seen, half.lenders)
            asked = heads(half.dev, half.near, self.lessons.train, half.seen, tools, None).vectors
            found += half.judge(asked @ tools.vectors.T)["mean"] * len(half.dev)
            count += len(half.dev)
        return found / count


def _half(lessons: Lessons, new: set[int], neighbours: int) -> _Half | None:
    device = lessons.tools.device
    wanting = [row for row, gold in enumerate(lessons.dev_gold) if new & set(gold)]
    left = [row for row, gold in enumerate(lessons.gold) if not new & set(gold)]
    if not wanting or not left:
        return None
    rows = torch.tensor(left, device=device)
    dev = lessons.dev[torch.tensor(wanting, device=device)]
    near = nearest(dev, lessons.train[rows], neighbours)
    known = set(left)
    edges = make_edges([gold if row in known else () for row, gold in enumerate(lessons.gold)], len(lessons.tools))
    lenders = sorted({row for each in left for row in lessons.gold[each]})
    return _Half(
        dev,
        Near(rows[near.rows], near.cosines, near.valid),
        view(edges.to(device)),
        torch.tensor(lenders, device=device),
        judge([lessons.dev_gold[row] for row in wanting], device),
    )
