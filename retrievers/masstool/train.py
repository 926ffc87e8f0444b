"""Learns MassTool's heads on vectors that are already there: sparse, whole batches at a time, on a CPU or a GPU.

A batch of training queries is held out of graph and pool while it is asked, edges and all, so that a training query
meets just what an unseen one will meet. All chance comes from (seed, epoch, step): a run that was killed goes on at its
last epoch and ends with the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from retrievers.masstool import losses
from retrievers.masstool.graph import Edges, View, make_edges, multi_hot, scene_views, view, without
from retrievers.masstool.lessons import Judge, Lessons, judge, nearest
from retrievers.masstool.model import Asked, Heads, Near, Tools
from retrievers.masstool.settings import MassToolSettings, MassToolTraining

SLACK = 2
"""So many times more neighbours are known of a training query than are used: those in its own batch are passed over."""
USUAL = 0.1
"""The threshold starts so low that this share of training queries has a neighbour below it."""
LABELS = 256
"""Labelled queries in a step, half of them needing a tool."""


class Learning:
    """One training, step by step."""

    def __init__(self, lessons: Lessons, settings: MassToolSettings, device: str) -> None:
        assert settings.train is not None
        self.settings, self.train, self.device = settings, settings.train, device
        self.lessons = lessons.to(device)
        self.edges: Edges = make_edges(lessons.gold, len(lessons.tools)).to(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.train.seed)
            self.heads = Heads(settings, lessons.tools.shape[1], len(lessons.tools), len(lessons.train))
        needed = sorted({row for each in lessons.gold for row in each})
        self.heads.whiten(lessons.tools[needed])
        self.heads.to(device)
        self.candidates = torch.tensor(needed, device=device)
        self.near = nearest(self.lessons.train, self.lessons.train, SLACK * settings.neighbours + 8, itself=True)
        self.dev_near = nearest(self.lessons.dev, self.lessons.train, settings.neighbours)
        if not settings.faithful and bool(self.near.valid.any()):
            self.heads.start_at(float(self.near.cosines[:, : settings.neighbours][:, -1].float().quantile(USUAL)))
        self.judge: Judge = judge(lessons.dev_gold, device)
        fused = device.startswith("cuda")
        self.optimizer = torch.optim.AdamW(_groups(self.heads, self.train), self.train.learning_rate, fused=fused)
        self.detects = settings.modules.detection and lessons.labels.both()
        self.sides = [lessons.labels.needs.cpu().nonzero()[:, 0], (~lessons.labels.needs.cpu()).nonzero()[:, 0]]

    def epoch(self, number: int) -> float:
        """One pass over the training queries; the mean loss."""
        generator = torch.Generator().manual_seed(self.train.seed * 1_000_003 + number)
        order = torch.randperm(len(self.lessons.train), generator=generator).to(self.device)
        rate = self.train.learning_rate * (1 - number / self.train.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["speed"]
        self.heads.train()
        total, batches = torch.zeros((), device=self.device), torch.split(order, self.train.batch_size)
        devices = [self.device] if self.device.startswith("cuda") else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.train.seed * 1_000_003 + number)
            drawn = without(self.edges, order[:0], self.train.edge_dropout, generator)
            for anchors in batches:
                loss = self.loss(anchors, generator, drawn)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                total += loss.detach() * len(anchors)
        return float(total) / len(order)

    def loss(self, anchors: Tensor, generator: torch.Generator, drawn: View) -> Tensor:
        """Of one batch. `drawn`: the graph that the authors draw once an epoch, the anchors' own edges in it."""
        train, lessons, faithful = self.train, self.lessons, self.settings.faithful
        seen = drawn if faithful else without(self.edges, anchors, train.edge_dropout, generator)
        tools = self.heads.tools(lessons.tools, lessons.train, seen)
        near = self.outside(anchors)
        asked: Asked = self.heads(lessons.train[anchors], near, lessons.train, seen, tools, anchors)
        columns = self.columns(anchors, generator)
        gold = multi_hot(self.edges, anchors, columns)
        scores = asked.vectors @ tools.vectors.index_select(0, columns).T
        if faithful:
            total = losses.short_lists(scores, gold, generator)
        else:
            total = losses.listwise(scores, gold, train.temperature)
        if self.settings.modules.contrast and train.contrast:
            both = losses.contrastive(asked.views[0], asked.views[1], train.contrast_temperature)
            held = self.heads.pool(lessons.train)
            by_tools, by_queries = scene_views(seen, held, tools.vectors, anchors)
            both = both + losses.contrastive(by_tools, by_queries, train.contrast_temperature)
            total = total + train.contrast * both
        if self.detects and train.detection:
            total = total + train.detection * self.detection(generator)
        return total

    def columns(self, anchors: Tensor, generator: torch.Generator) -> Tensor:
        """The tools in this step's softmax: all that training needs, or the batch's own and a random fill."""
        if len(self.candidates) <= self.train.candidates:
            return self.candidates
        own = self.edges.tools[anchors][self.edges.real[anchors]]
        fill = torch.randperm(len(self.candidates), generator=generator)[: self.train.candidates].to(self.device)
        both: Tensor = torch.unique(torch.cat([own, self.candidates[fill]]))
        return both

    def outside(self, anchors: Tensor) -> Near:
        """The anchors' neighbours; unless faithful, those that are not anchors of the same batch."""
        count = self.settings.neighbours
        rows, cosines, valid = (each[anchors] for each in (self.near.rows, self.near.cosines, self.near.valid))
        if self.settings.faithful:
            return Near(rows[:, :count], cosines[:, :count], valid[:, :count])
        batch = torch.zeros(len(self.lessons.train), dtype=torch.bool, device=self.device)
        batch[anchors] = True
        valid = valid & ~batch[rows]
        order = (~valid).to(torch.int8).argsort(dim=1, stable=True)[:, :count]
        return Near(rows.gather(1, order), cosines.gather(1, order), valid.gather(1, order))

    def warm_up(self, steps: int | None = None) -> int:
        """Teaches the detection tower before all else, so that there is something to transfer; tells in how many steps.

        None: dev chooses.
        """
        tower = [*self.heads.tower.parameters(), *self.heads.decide.parameters()]
        optimizer = torch.optim.AdamW(tower, lr=1e-3, weight_decay=0.01)
        generator, held = torch.Generator().manual_seed(self.train.seed), self.lessons.dev_labels
        best, chosen, kept = torch.inf, 0, [each.detach().clone() for each in tower]
        devices = [self.device] if self.device.startswith("cuda") else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.train.seed)
            for step in range(1, (self.train.warm_up if steps is None else steps) + 1):
                self.heads.train()
                loss = self.detection(generator)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if steps is None and step % 50 == 0:
                    self.heads.eval()
                    with torch.no_grad():
                        found = float(losses.balanced(self.heads.needs(held.vectors), held.needs))
                    if found < best:
                        best, chosen, kept = found, step, [each.detach().clone() for each in tower]
        if steps is not None:
            return steps
        with torch.no_grad():
            for each, value in zip(tower, kept, strict=True):
                each.copy_(value)
        return chosen

    def detection(self, generator: torch.Generator) -> Tensor:
        """The detection loss of some labelled queries, half of them needing a tool."""
        labels = self.lessons.labels
        chosen = [side[torch.randint(len(side), (LABELS // 2,), generator=generator)] for side in self.sides]
        rows = torch.cat(chosen).to(self.device)
        logits = self.heads.needs(labels.vectors[rows])
        return losses.detection(logits, labels.needs[rows], self.settings.faithful)

    @torch.no_grad()
    def scores(self) -> Tensor:
        """(dev queries, tools), as a search would find them."""
        self.heads.eval()
        seen = view(self.edges)
        tools: Tools = self.heads.tools(self.lessons.tools, self.lessons.train, seen, self.candidates)
        found: Tensor = self.heads(self.lessons.dev, self.dev_near, self.lessons.train, seen, tools, None).vectors
        return found @ tools.vectors.T

    def dev(self) -> dict[str, float]:
        """Dev metrics."""
        return self.judge(self.scores())


def _groups(heads: Heads, train: MassToolTraining) -> list[dict[str, Any]]:
    """Free vectors decay; single numbers move ten times as fast; all else as it is."""
    free = [heads.adapter, heads.residual, heads.queries]
    single = [heads.sink, heads.own, heads.graph, heads.weights]
    if heads.settings.faithful:  # theirs are fixed at 1 and nothing decays
        skipped = {id(each) for each in single} | {id(each) for each in heads.mixing}
        kept = [each for each in heads.parameters() if id(each) not in skipped]
        return [{"params": kept, "weight_decay": 0.0, "speed": 1.0}]
    known = {id(each) for each in (*free, *single)}
    rest = [each for each in heads.parameters() if id(each) not in known]
    return [
        {"params": free, "weight_decay": train.weight_decay, "speed": 1.0},
        {"params": single, "weight_decay": 0.0, "speed": 10.0},
        {"params": rest, "weight_decay": 0.0, "speed": 1.0},
    ]
