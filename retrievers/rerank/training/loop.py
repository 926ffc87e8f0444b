"""The loss of a reranker, and its training: seeded, resumed after a kill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from retrievers.dense.tuning.general import StepPlan, freeze_parameters, train_steps
from retrievers.rerank.settings import RerankTraining
from retrievers.rerank.training.batches import TrainingList, TrainingLists


class TrainableReranker(Protocol):
    """A reranker whose scores have gradients."""

    @property
    def max_training_pairs(self) -> int:
        """Pairs whose gradients are computed together."""

    @property
    def trained(self) -> Any:
        """The module that training changes."""

    def logits(self, requests: Sequence[str], tools: Sequence[str]) -> Tensor:
        """(pairs,): scores with gradients."""

    def cut(self, request: str, tools: Sequence[str]) -> tuple[str, list[str]]:
        """Request and tools as the model reads them."""


def list_loss(scores: Tensor, needed: Sequence[bool], binary: float) -> Tensor:
    """Softmax over the list, with equal shares for needed tools, and binary cross entropy of the single tools.

    The second makes scores of different queries comparable, which a threshold needs.
    """
    targets = torch.tensor(needed, dtype=scores.dtype, device=scores.device)
    listwise = -(targets / targets.sum() * functional.log_softmax(scores, dim=0)).sum()
    return listwise + binary * functional.binary_cross_entropy_with_logits(scores, targets)


def train_reranker(
    model: TrainableReranker, lists: TrainingLists, settings: RerankTraining, seed: int, work: Path, show: bool
) -> list[tuple[int, float]]:
    """Train in place, or continue from the checkpoint in `work`; return steps with their losses."""
    module = model.trained
    parameters = freeze_parameters(module, settings.freeze)  # an adapter has frozen its base already
    module.train()
    plan = StepPlan(settings.steps, settings.learning_rate, seed, "training the reranker")
    losses = train_steps(parameters, lambda step: _losses(model, lists.draw(step), settings.binary), plan, work, show)
    module.eval()
    return losses


def _losses(model: TrainableReranker, lists: Sequence[TrainingList], binary: float) -> Iterator[Tensor]:
    """Parts of a step's mean loss, as many lists at a time as fit into memory."""
    part: list[TrainingList] = []
    for number, one in enumerate(lists, 1):
        part.append(one)
        following = len(lists[number].needed) if number < len(lists) else model.max_training_pairs
        if sum(len(own.needed) for own in part) + following > model.max_training_pairs:
            yield _part_loss(model, part, binary) / len(lists)
            part = []
    if part:
        yield _part_loss(model, part, binary) / len(lists)


def _part_loss(model: TrainableReranker, lists: Sequence[TrainingList], binary: float) -> Tensor:
    pairs = [
        (request, tool) for one in lists for request, tools in [model.cut(one.query, one.documents)] for tool in tools
    ]
    requests, tools = zip(*pairs, strict=True)
    scores = torch.split(model.logits(requests, tools), [len(one.needed) for one in lists])
    losses = [list_loss(own, one.needed, binary) for own, one in zip(scores, lists, strict=True)]
    return torch.stack(losses).sum()
