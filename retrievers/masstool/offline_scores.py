"""Scores of trained heads without an index, for ablations and experiments."""

from __future__ import annotations

import torch
from torch import Tensor

from retrievers.masstool.graph import full_view, make_edges
from retrievers.masstool.model import Heads
from retrievers.masstool.training.tensors import TrainingTensors, nearest

BATCH_SIZE = 1024


@torch.no_grad()
def offline_scores(heads: Heads, tensors: TrainingTensors, queries: Tensor) -> Tensor:
    """(queries, tools) scores as an index would compute them: dev queries are in the pool, not in the tools' graph."""
    heads.eval()
    device, count = heads.scales.device, len(tensors.tools)
    here = tensors.to(str(device))
    trained = torch.tensor(tensors.trained_tools(), device=device)
    tools = heads.tools(here.tools, here.train, full_view(make_edges(tensors.gold, count).to(device)), trained)
    keys, gold = here.train, list(tensors.gold)
    if heads.pool_includes_dev:
        keys, gold = torch.cat([keys, here.dev]), [*gold, *tensors.dev_gold]
    view = full_view(make_edges(gold, count).to(device))
    parts = []
    for batch in torch.split(queries.to(device), BATCH_SIZE):
        near = nearest(batch, keys, heads.settings.neighbours)
        parts.append(heads(batch, near, keys, view, tools, None).vectors @ tools.vectors.T)
    return torch.cat(parts)
