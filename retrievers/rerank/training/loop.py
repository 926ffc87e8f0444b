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

MAX_REQUEST, MAX_TOOL = 4000, 1000
"""Characters above which lengths make no difference, since texts are cut."""


class TrainableReranker(Protocol):
    """A reranker whose scores have gradients."""

    @property
    def max_training_pairs(self) -> int:
        """Pairs whose gradients are computed together."""

    @property
    def max_training_characters(self) -> int:
        """Characters, padding included, whose gradients are computed together."""

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
    for part in split_lists(lists, model.max_training_pairs, model.max_training_characters):
        yield _part_loss(model, part, binary) / len(lists)


def split_lists(lists: Sequence[TrainingList], max_pairs: int, max_characters: int) -> Iterator[list[TrainingList]]:
    """Lists of similar length together: in a part, all pairs are padded to the longest."""
    part: list[TrainingList] = []
    for one in sorted(lists, key=_length, reverse=True):
        pairs = sum(len(own.needed) for own in part) + len(one.needed)
        if part and (pairs > max_pairs or pairs * _length(part[0]) > max_characters):
            yield part
            part = []
        part.append(one)
    if part:
        yield part


def _length(one: TrainingList) -> int:
    """Characters of the longest pair, about as much of it as is read."""
    return min(len(one.query), MAX_REQUEST) + min(max(map(len, one.documents)), MAX_TOOL)


def _part_loss(model: TrainableReranker, lists: Sequence[TrainingList], binary: float) -> Tensor:
    pairs = [
        (request, tool) for one in lists for request, tools in [model.cut(one.query, one.documents)] for tool in tools
    ]
    requests, tools = zip(*pairs, strict=True)
    scores = torch.split(model.logits(requests, tools), [len(one.needed) for one in lists])
    losses = [list_loss(own, one.needed, binary) for own, one in zip(scores, lists, strict=True)]
    return torch.stack(losses).sum()
