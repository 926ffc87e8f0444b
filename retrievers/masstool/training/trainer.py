"""Trains the heads on embedded queries, in batches, on a CPU or a GPU.

A batch of training queries is held out of graph and pool while it is trained on, so that a training query sees what an
unseen one will see. All randomness comes from (seed, epoch): a killed run resumes at its last epoch and ends with the
same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from retrievers.dense.encoder import check_device
from retrievers.kind import Context
from retrievers.masstool import losses
from retrievers.masstool.graph import column_of, full_view, gold_shares, make_edges, scatter_columns, to_scenes
from retrievers.masstool.model import Heads
from retrievers.masstool.serving.heads import TEMPERATURE
from retrievers.masstool.settings import MassToolSettings
from retrievers.masstool.training.calibration import calibrate_threshold, keep_best
from retrievers.masstool.training.step_sampler import LABELS, MAX_CANDIDATES, Step, StepSampler, draw_labels, label_rows
from retrievers.masstool.training.tensors import DevMetrics, TrainingTensors, nearest
from retrievers.masstool.training.unseen_tool_dev import UnseenToolDev
from retrievers.masstool.vectors import QueryVectors

SPARE_NEIGHBOURS = 2
"""Factor of neighbours looked up per training query: those in its own batch are left out."""
TYPICAL_QUANTILE = 0.1
"""The threshold starts at this quantile of the cosines of the farthest neighbour."""
CONTRAST_TEMPERATURE = 0.1
DETECTION_WEIGHT = 0.1
WARMUP_STEPS = 400
"""Steps of detection alone before the rest is trained."""


class HeadTrainer:
    """One training of the heads, step by step. faithful.py overrides what the authors do differently."""

    heads_class: ClassVar[type[Heads]] = Heads

    def __init__(self, tensors: TrainingTensors, settings: MassToolSettings, context: Context) -> None:
        assert settings.train is not None
        self.settings, self.train, self.device = settings, settings.train, check_device(context.device)
        self.tensors = tensors.to(self.device)
        self.edges = make_edges(tensors.gold, len(tensors.tools)).to(self.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.train.seed)
            self.heads = self.heads_class(settings, tensors.tools.shape[1], len(tensors.tools), len(tensors.train))
        trained = tensors.trained_tools()
        self.candidates = torch.tensor(trained, device=self.device)
        count = settings.neighbours
        near = nearest(self.tensors.train, self.tensors.train, SPARE_NEIGHBOURS * count + 8, exclude_self=True)
        typical = float(near.cosines[:, :count][:, -1].float().quantile(TYPICAL_QUANTILE)) if near.valid.any() else None
        self.heads.initialize(tensors.tools[trained], typical if settings.calibration() != "none" else None)
        self.heads.to(self.device)
        self.dev_near = nearest(self.tensors.dev, self.tensors.train, count)
        self.metrics = DevMetrics(context.measure, tensors.dev_gold)
        self.unseen = UnseenToolDev(self.tensors, settings, self.unseen_tool_weight(), context.measure)
        fused = self.device == "cpu" or self.device.startswith("cuda")
        self.optimizer = torch.optim.AdamW(self.heads.parameter_groups(), self.train.learning_rate, fused=fused)
        self.detects = settings.modules.detection and tensors.labels.has_both_kinds()
        needs = self.tensors.labels.needs
        self.sides = [needs.nonzero()[:, 0], (~needs).nonzero()[:, 0]]
        self._needs = (torch.arange(LABELS, device=self.device) < LABELS // 2).float()
        self._shares = gold_shares(self.edges)
        self._columns = column_of(self.edges.tools, self.candidates, self.edges.num_tools)
        sides = self.sides if self.detects else []
        self.sampler = StepSampler(self.edges, near, count, self.train.batch_size, len(trained), sides)

    def step_size(self) -> int:
        """Multiplications of a step's largest product, that of queries and candidates."""
        candidates = max(min(len(self.candidates), MAX_CANDIDATES), self.tensors.tools.shape[1])
        return self.train.batch_size * candidates * self.tensors.tools.shape[1]

    def unseen_tool_weight(self) -> float:
        """Weight on dev of tools that no training query needs."""
        weight = self.train.unseen_tool_weight
        return 1 - len(self.candidates) / len(self.tensors.tools) if weight is None else weight

    def steps(self, order: Tensor, generator: torch.Generator) -> Iterator[Step]:
        return self.sampler.steps(order, generator)

    def epoch(self, number: int) -> float:
        """Run one pass over the training queries; return the mean loss."""
        generator = self._generator(self.train.seed * 1_000_003 + number)
        order = torch.randperm(len(self.tensors.train), generator=generator, device=self.device)
        rate = self.train.learning_rate * (1 - number / self.train.epochs if self.train.decay else 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["speed"]
        self.heads.train()
        total = torch.zeros((), device=self.device)
        with torch.random.fork_rng(devices=self._cuda_devices()):
            torch.manual_seed(self.train.seed * 1_000_003 + number)
            for step in self.steps(order, generator):
                loss = self.loss(step, generator)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                total.add_(loss.detach(), alpha=len(step.rows))
        return float(total) / len(order)

    def _generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def _cuda_devices(self) -> list[str]:
        return [self.device] if self.device.startswith("cuda") else []

    def loss(self, step: Step, generator: torch.Generator) -> Tensor:
        """Total loss of one batch."""
        queries, rows = self.tensors.train, step.rows
        tools = self.heads.tools(self.tensors.tools, queries, step.view)
        folded: QueryVectors = self.heads(queries[rows], step.near, queries, step.view, tools, rows)
        columns, gold_columns = self.columns(step)
        gold = scatter_columns(gold_columns, self._shares[rows], len(columns))
        vectors = tools.vectors.index_select(0, columns)
        total = self.retrieval_loss(folded.vectors @ vectors.T, gold, generator)
        if self.settings.modules.contrast:
            both = losses.contrastive(folded.views[0], folded.views[1], CONTRAST_TEMPERATURE)
            by_tools = gold[step.first] @ vectors  # a scene is the mean of its tools
            by_queries = by_tools + to_scenes(step.view, self.heads.pool(queries))[step.scenes]
            both = both + losses.contrastive(by_tools, by_queries, CONTRAST_TEMPERATURE)
            total = torch.add(total, both, alpha=self.train.contrast_weight)
        if self.detects:
            labels = step.labels if step.labels is not None else self._draw_labels(generator)[0]
            total = torch.add(total, self._detection_loss(labels), alpha=DETECTION_WEIGHT)
        return total

    def retrieval_loss(self, scores: Tensor, gold: Tensor, generator: torch.Generator) -> Tensor:
        """Loss of scores (queries, candidates) against the shares of the gold tools."""
        if self.train.lists == "ten":
            return losses.short_lists(scores, (gold > 0).to(scores.dtype), generator)
        return losses.listwise(scores, gold, TEMPERATURE)

    def columns(self, step: Step) -> tuple[Tensor, Tensor]:
        """Candidate tools of this step, and the column of each gold tool."""
        if step.fill is None:
            return self.candidates, self._columns[step.rows]
        tools = self.edges.tools[step.rows]
        own = tools[self.edges.is_edge[step.rows]]
        both = torch.unique(torch.cat([own, self.candidates[step.fill]]))
        return both, column_of(tools, both, self.edges.num_tools)

    def warm_up(self) -> int:
        """Train the detection tower alone, so that there is something to transfer; return the steps that dev chose."""
        dev = self.tensors.dev_labels
        if not (self.train.detection_first and self.detects and dev.has_both_kinds()):
            return 0
        tower = [*self.heads.tower.parameters(), *self.heads.needs_tool.parameters()]
        optimizer = torch.optim.AdamW(tower, lr=1e-3, weight_decay=0.01)
        best, chosen, kept = torch.inf, 0, [weights.detach().clone() for weights in tower]
        batches = self._draw_labels(self._generator(self.train.seed), WARMUP_STEPS)
        with torch.random.fork_rng(devices=self._cuda_devices()):
            torch.manual_seed(self.train.seed)
            for step, rows in enumerate(batches, 1):
                self.heads.train()
                loss = self._detection_loss(rows)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if step % 50 == 0:
                    self.heads.eval()
                    with torch.no_grad():
                        dev_loss = float(losses.balanced_detection(self.heads.detection_logits(dev.vectors), dev.needs))
                    if dev_loss < best:
                        best, chosen, kept = dev_loss, step, [weights.detach().clone() for weights in tower]
        with torch.no_grad():
            for weights, value in zip(tower, kept, strict=True):
                weights.copy_(value)
        return chosen

    def _detection_loss(self, rows: Tensor) -> Tensor:
        return self.heads.detection_loss(self.tensors.labels.vectors[rows], self._needs)

    def _draw_labels(self, generator: torch.Generator, times: int = 1) -> Sequence[Tensor]:
        return label_rows(self.sides, [draw_labels(self.sides, generator) for _ in range(times)]).unbind()

    @torch.no_grad()
    def scores(self) -> Tensor:
        """(dev queries, tools) scores as a search would compute them."""
        self.heads.eval()
        queries, view = self.tensors.train, full_view(self.edges)
        tools = self.heads.tools(self.tensors.tools, queries, view, self.candidates)
        folded: QueryVectors = self.heads(self.tensors.dev, self.dev_near, queries, view, tools, None)
        return folded.vectors @ tools.vectors.T

    def dev(self) -> dict[str, float]:
        """Dev metrics. Their `mean`, which everything is chosen by, includes unseen tools (unseen_tool_dev.py)."""
        seen = self.metrics(self.scores())
        unseen, weight = self.unseen(self.heads), self.unseen.weight
        if unseen is None:
            return seen
        mean = (1 - weight) * seen["mean"] + weight * unseen
        return {**seen, "mean": mean, "seen_tools": seen["mean"], "unseen_tools": unseen}

    def choose(self, states: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
        """Calibrate on dev as the settings say, leave the best in the heads, and describe it."""
        match self.settings.calibration():
            case "all":
                return keep_best(self.heads, self.dev, states)
            case "threshold":
                return {"chosen": calibrate_threshold(self.heads, self.dev)}
            case _:
                return {"chosen": {}}
