"""Learns MassTool's heads on vectors that are already there: sparse, whole batches at a time, on a CPU or a GPU.

A batch of training queries is held out of graph and pool while it is asked, edges and all, so that a training query
meets just what an unseen one will meet. All chance comes from (seed, epoch, step): a run that was killed goes on at its
last epoch and ends with the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from retrievers.masstool import losses
from retrievers.masstool.graph import Edges, make_edges, placed, shares, spread, to_scenes, view
from retrievers.masstool.model import Asked, Heads, Tools
from retrievers.masstool.settings import MassToolSettings, MassToolTraining
from retrievers.masstool.training.step_sampler import LABELS, Drawing, Step, draw_labels, labelled
from retrievers.masstool.training.tensors import Judge, Lessons, judge, nearest
from retrievers.masstool.training.unseen_tool_dev import Unasked

SLACK = 2
"""So many times more neighbours are known of a training query than are used: those in its own batch are passed over."""
USUAL = 0.1
"""The threshold starts so low that this share of training queries has a neighbour below it."""


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
        share = self.train.unasked if self.train.unasked is not None else 1 - len(needed) / len(lessons.tools)
        self.unasked = Unasked(self.lessons, settings, 0.0 if settings.faithful else share)
        fused = device.startswith("cuda")
        self.optimizer = torch.optim.AdamW(_groups(self.heads, self.train), self.train.learning_rate, fused=fused)
        self.detects = settings.modules.detection and lessons.labels.both()
        needs = self.lessons.labels.needs
        self.sides = [needs.nonzero()[:, 0], (~needs).nonzero()[:, 0]]
        self._needs = (torch.arange(LABELS, device=device) < LABELS // 2).float()
        self._shares = shares(self.edges)
        self._places = placed(self.edges.tools, self.candidates, self.edges.count)
        asked = self.sides if self.detects and self.train.detection else []
        self._drawing = Drawing(self.edges, self.near, settings, len(needed), asked)

    def epoch(self, number: int) -> float:
        """One pass over the training queries; the mean loss."""
        generator = self._generator(self.train.seed * 1_000_003 + number)
        order = torch.randperm(len(self.lessons.train), generator=generator, device=self.device)
        rate = self.train.learning_rate * (1 - number / self.train.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["speed"]
        self.heads.train()
        total = torch.zeros((), device=self.device)
        devices = [self.device] if self.device.startswith("cuda") else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.train.seed * 1_000_003 + number)
            for step in self._drawing.steps(order, generator):
                loss = self.loss(step, generator)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                total.add_(loss.detach(), alpha=len(step.anchors))
        return float(total) / len(order)

    def _generator(self, seed: int) -> torch.Generator:
        """Chance on the device itself: what comes from elsewhere has to be waited for."""
        return torch.Generator(self.device).manual_seed(seed)

    def loss(self, step: Step, generator: torch.Generator) -> Tensor:
        """Of one batch."""
        train, lessons, anchors = self.train, self.lessons, step.anchors
        tools = self.heads.tools(lessons.tools, lessons.train, step.seen)
        asked: Asked = self.heads(lessons.train[anchors], step.near, lessons.train, step.seen, tools, anchors)
        columns, places = self.columns(step)
        gold = spread(places, self._shares[anchors], len(columns))
        held = tools.vectors.index_select(0, columns)
        scores = asked.vectors @ held.T
        if self.settings.faithful:
            total = losses.short_lists(scores, (gold > 0).to(scores.dtype), generator)
        else:
            total = losses.listwise(scores, gold, train.temperature)
        if self.settings.modules.contrast and train.contrast:
            both = losses.contrastive(asked.views[0], asked.views[1], train.contrast_temperature)
            by_tools = gold[step.first] @ held  # a scene is the mean of its tools
            by_queries = by_tools + to_scenes(step.seen, self.heads.pool(lessons.train))[step.scenes]
            both = both + losses.contrastive(by_tools, by_queries, train.contrast_temperature)
            total = torch.add(total, both, alpha=train.contrast)
        if self.detects and train.detection:
            rows = step.labels if step.labels is not None else self._labelled(generator)[0]
            total = torch.add(total, self.detection(rows), alpha=train.detection)
        return total

    def columns(self, step: Step) -> tuple[Tensor, Tensor]:
        """The tools in this step's softmax, all that training needs or the batch's own and a random fill; and which of
        them each anchor needs."""
        if step.fill is None:
            return self.candidates, self._places[step.anchors]
        tools = self.edges.tools[step.anchors]
        own = tools[self.edges.real[step.anchors]]
        both = torch.unique(torch.cat([own, self.candidates[step.fill]]))
        return both, placed(tools, both, self.edges.count)

    def warm_up(self, steps: int | None = None) -> int:
        """Teaches the detection tower before all else, so that there is something to transfer; tells in how many steps.

        None: dev chooses.
        """
        tower = [*self.heads.tower.parameters(), *self.heads.decide.parameters()]
        optimizer = torch.optim.AdamW(tower, lr=1e-3, weight_decay=0.01)
        held, most = self.lessons.dev_labels, self.train.warm_up if steps is None else steps
        drawn = self._labelled(self._generator(self.train.seed), most)
        best, chosen, kept = torch.inf, 0, [each.detach().clone() for each in tower]
        devices = [self.device] if self.device.startswith("cuda") else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.train.seed)
            for step, rows in enumerate(drawn, 1):
                self.heads.train()
                loss = self.detection(rows)
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

    def detection(self, rows: Tensor) -> Tensor:
        """The detection loss of labelled queries, the first half of them needing a tool."""
        logits = self.heads.needs(self.lessons.labels.vectors[rows])
        return losses.detection(logits, self._needs, self.settings.faithful)

    def _labelled(self, generator: torch.Generator, times: int = 1) -> Sequence[Tensor]:
        """Rows of labelled queries, so many times."""
        drawn = [draw_labels(self.sides, generator) for _ in range(times)]
        return labelled(self.sides, drawn).unbind() if drawn else ()

    @torch.no_grad()
    def scores(self) -> Tensor:
        """(dev queries, tools), as a search would find them."""
        self.heads.eval()
        seen = view(self.edges)
        tools: Tools = self.heads.tools(self.lessons.tools, self.lessons.train, seen, self.candidates)
        found: Tensor = self.heads(self.lessons.dev, self.dev_near, self.lessons.train, seen, tools, None).vectors
        return found @ tools.vectors.T

    def dev(self) -> dict[str, float]:
        """Dev metrics. Their `mean`, which all is chosen by, counts in tools that nobody has asked for (unasked.py)."""
        found = self.judge(self.scores())
        strange, share = self.unasked(self.heads), self.unasked.share
        if strange is None:
            return found
        mean = (1 - share) * found["mean"] + share * strange
        return {**found, "mean": mean, "asked": found["mean"], "unasked": strange}


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
