"""Dev metrics for tools that no training query needs.

Dev queries are cut from training ones, so training queries need all of their tools. Where most of a catalogue is in no
training query, such a dev set favours votes that pull every request towards the few known tools. So half of the known
tools at a time are treated as new: their queries leave pool and graph, their learned shifts are dropped, and the dev
queries that need one of them are searched. `train.unseen_tool_weight` is the weight of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from retrievers.kind import Measure
from retrievers.masstool.graph import GraphView, full_view, make_edges
from retrievers.masstool.model import Heads
from retrievers.masstool.settings import MassToolSettings
from retrievers.masstool.training.tensors import DevMetrics, TrainingTensors, nearest
from retrievers.masstool.vectors import Neighbours


@dataclass(frozen=True, slots=True)
class _Half:
    """A catalogue in which half of the known tools are new."""

    dev: Tensor
    """Vectors of the dev queries that need a new tool."""
    near: Neighbours
    view: GraphView
    trained: Tensor
    """Rows of the tools that are still known."""
    metrics: DevMetrics


class UnseenToolDev:
    """Searches dev queries as if their tools were new."""

    def __init__(self, tensors: TrainingTensors, settings: MassToolSettings, weight: float, measure: Measure) -> None:
        self.tensors, self.weight, self.halves = tensors, weight, list[_Half]()
        known = tensors.trained_tools()
        if not weight or len(known) < 2:
            return
        assert settings.train is not None
        order = torch.randperm(len(known), generator=torch.Generator().manual_seed(settings.train.seed)).tolist()
        for new in (order[::2], order[1::2]):
            half = _make_half(tensors, {known[index] for index in new}, settings.neighbours, measure)
            if half is not None:
                self.halves.append(half)

    @torch.no_grad()
    def __call__(self, heads: Heads) -> float | None:
        """Mean metric of these queries; None: it has no weight, or there are no such queries."""
        if not self.halves:
            return None
        heads.eval()
        total, count = 0.0, 0
        queries = self.tensors.train
        for half in self.halves:
            tools = heads.tools(self.tensors.tools, queries, half.view, half.trained)
            vectors = heads(half.dev, half.near, queries, half.view, tools, None).vectors
            total += half.metrics(vectors @ tools.vectors.T)["mean"] * len(half.dev)
            count += len(half.dev)
        return total / count


def _make_half(tensors: TrainingTensors, new: set[int], neighbours: int, measure: Measure) -> _Half | None:
    device = tensors.tools.device
    dev_rows = [row for row, gold in enumerate(tensors.dev_gold) if new & set(gold)]
    kept = [row for row, gold in enumerate(tensors.gold) if not new & set(gold)]
    if not dev_rows or not kept:
        return None
    rows = torch.tensor(kept, device=device)
    dev = tensors.dev[torch.tensor(dev_rows, device=device)]
    near = nearest(dev, tensors.train[rows], neighbours)
    known = set(kept)
    edges = make_edges([gold if row in known else () for row, gold in enumerate(tensors.gold)], len(tensors.tools))
    trained = sorted({row for query in kept for row in tensors.gold[query]})
    return _Half(
        dev,
        Neighbours(rows[near.rows], near.cosines, near.valid),
        full_view(edges.to(device)),
        torch.tensor(trained, device=device),
        DevMetrics(measure, [tensors.dev_gold[row] for row in dev_rows]),
    )
