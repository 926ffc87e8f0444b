"""Trained heads asked without an index: what an index built from them would score, for ablations and experiments."""

from __future__ import annotations

import torch
from torch import Tensor

from retrievers.masstool.graph import make_edges, view
from retrievers.masstool.model import Heads
from retrievers.masstool.training.tensors import Lessons, nearest

AT_ONCE = 1024


@torch.no_grad()
def scores(heads: Heads, lessons: Lessons, queries: Tensor) -> Tensor:
    """(queries, tools). As served: the pool holds the dev queries too, unless faithful; the tools' graph does not."""
    heads.eval()
    device, count = heads.shares.device, len(lessons.tools)
    here = lessons.to(str(device))
    needed = torch.tensor(sorted({row for each in lessons.gold for row in each}), device=device)
    tools = heads.tools(here.tools, here.train, view(make_edges(lessons.gold, count).to(device)), needed)
    faithful = heads.settings.faithful
    keys = here.train if faithful else torch.cat([here.train, here.dev])
    gold = list(lessons.gold) if faithful else [*lessons.gold, *lessons.dev_gold]
    seen = view(make_edges(gold, count).to(device))
    parts = []
    for some in torch.split(queries.to(device), AT_ONCE):
        near = nearest(some, keys, heads.settings.neighbours)
        parts.append(heads(some, near, keys, seen, tools, None).vectors @ tools.vectors.T)
    return torch.cat(parts)
