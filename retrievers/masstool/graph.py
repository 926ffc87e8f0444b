"""The graphs: which queries of the pool need which tools, which of them share a scene, and what flows along the edges.

Edges are kept as a table: one row a query of the pool, its gold tools' rows, padded with the number of tools, where a
row of zeros stands. What is propagated is LightGCN's sum (He et al., 2020): no weights, only degrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Edges:
    """The gold edges of a pool of queries."""

    tools: Tensor
    """(queries, most gold tools) rows of tools; `count` where there is none"""
    scenes: Tensor
    """(queries,) which gold set each has"""
    count: int
    """Tools there are."""
    sets: int
    """Gold sets there are; a number, since a GPU would have to stop to tell it."""

    @property
    def real(self) -> Tensor:
        """(queries, most gold tools): True where there is an edge."""
        return self.tools < self.count

    def to(self, device: str | torch.device) -> Edges:
        """The same elsewhere."""
        return replace(self, tools=self.tools.to(device), scenes=self.scenes.to(device))


def make_edges(gold: Sequence[Sequence[int]], count: int) -> Edges:
    """Edges out of lists of rows; a query without any stands alone."""
    lengths = np.fromiter(map(len, gold), np.int64, len(gold))
    width = int(lengths.max(initial=1)) or 1
    tools = np.full((len(gold), width), count, dtype=np.int64)
    tools[np.arange(width) < lengths[:, None]] = np.fromiter(chain.from_iterable(gold), np.int64, lengths.sum())
    known: dict[tuple[int, ...], int] = {}
    scenes = np.fromiter((known.setdefault(tuple(sorted(each)), len(known)) for each in gold), np.int64, len(gold))
    return Edges(torch.from_numpy(tools), torch.from_numpy(scenes), count, len(known))


@dataclass(frozen=True, slots=True)
class View:
    """The edges that are seen at one moment, with the degrees that follow from them."""

    edges: Edges
    kept: Tensor
    """(queries, most gold tools): edges between queries and tools"""
    kept_scenes: Tensor
    """(queries,): edges between queries and scenes"""
    queries: Tensor
    tools: Tensor
    """Degrees, at least 1; that of the padding is 1."""


def view(edges: Edges, kept: Tensor | None = None, kept_scenes: Tensor | None = None) -> View:
    """All edges, or those that are kept."""
    seen = edges.real if kept is None else edges.real & kept
    scenes = edges.real.any(1) if kept_scenes is None else kept_scenes & edges.real.any(1)
    degrees = torch.bincount(edges.tools[seen], minlength=edges.count + 1).clamp(min=1)
    return View(edges, seen, scenes, seen.sum(1).clamp(min=1), degrees)


def without(edges: Edges, anchors: Tensor, dropout: float, generator: torch.Generator) -> View:
    """The graph as unseen queries meet it: the anchors have no edges, and a share of the others is dropped."""
    shape, device = edges.tools.shape, edges.tools.device
    kept = (torch.rand(shape, generator=generator) >= dropout).to(device)
    scenes = (torch.rand(shape[0], generator=generator) >= dropout).to(device)
    kept[anchors] = False
    scenes[anchors] = False
    return view(edges, kept, scenes)


def multi_hot(edges: Edges, queries: Tensor, columns: Tensor) -> Tensor:
    """(queries, columns): 1 where a query needs the tool of a column; every tool it needs is among the columns."""
    place = torch.full((edges.count + 1,), len(columns), dtype=torch.long, device=columns.device)
    place[columns] = torch.arange(len(columns), device=columns.device)
    gold = torch.zeros(len(queries), len(columns) + 1, device=columns.device)
    return gold.scatter_(1, place[edges.tools[queries]], 1.0)[:, :-1]


def scene_members(edges: Edges) -> Tensor:
    """(scenes, most gold tools): the tools of every scene, padded as edges are."""
    return edges.tools[_unique(edges.scenes)[1]]


def to_tools(seen: View, queries: Tensor) -> Tensor:
    """(tools, dimensions): what the queries' vectors bring to their tools, over the roots of both degrees."""
    rows, places = seen.kept.nonzero(as_tuple=True)
    tools = seen.edges.tools[rows, places]
    weights = (seen.queries[rows] * seen.tools[tools]).to(queries.dtype).rsqrt()
    found = queries.new_zeros(seen.edges.count, queries.shape[1])
    return found.index_add(0, tools, queries[rows] * weights[:, None])


def to_queries(seen: View, signals: Tensor, rows: Tensor, scene: bool) -> Tensor:
    """What tools bring to some queries of the pool, (rows, dimensions).

    Tool view: over the roots of both degrees, so that popular tools speak softly. Scene view: the mean of the gold
    set, which is what a scene's node holds; one scene a query, so that nothing else weighs.
    """
    tools, kept = seen.edges.tools[rows], seen.kept[rows]
    if scene:
        real = seen.edges.real[rows]
        held = (real & seen.kept_scenes[rows, None]).to(signals.dtype)
        weights = held / real.sum(1, keepdim=True).clamp(min=1)
    else:
        weights = kept * (seen.queries[rows, None] * seen.tools[tools]).to(signals.dtype).rsqrt()
    return functional.embedding_bag(tools, signals, per_sample_weights=weights.to(signals.dtype), mode="sum")


def layers(seen: View, queries: Tensor, tools: Tensor, count: int, normal: bool) -> list[Tensor]:
    """The tools' vectors layer by layer, the first as given. `normal`: later ones have length 1, as the authors do."""
    found, held = [tools], queries
    for layer in range(count):
        fresh = to_tools(seen, held)
        if layer + 1 < count:
            padded = torch.cat([found[-1], found[-1].new_zeros(1, tools.shape[1])])
            held = to_queries(seen, padded, torch.arange(len(queries), device=queries.device), scene=False)
        found.append(functional.normalize(fresh, dim=-1) if normal else fresh)
    return found


def scene_views(seen: View, queries: Tensor, tools: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Two views of the scenes of some queries, one row a scene: by their tools, and by the queries they belong to."""
    scenes, first = _unique(seen.edges.scenes[rows])
    members, real = seen.edges.tools[rows[first]], seen.edges.real[rows[first]]
    padded = torch.cat([tools, tools.new_zeros(1, tools.shape[1])])
    weights = real.to(tools.dtype) / real.sum(1, keepdim=True).clamp(min=1)
    by_tools = functional.embedding_bag(members, padded, per_sample_weights=weights, mode="sum")
    place = torch.full((seen.edges.sets,), -1, dtype=torch.long, device=scenes.device)
    place[scenes] = torch.arange(len(scenes), device=scenes.device)
    owner = place[seen.edges.scenes]
    asked = ((owner >= 0) & seen.kept_scenes).nonzero()[:, 0]
    sums = queries.new_zeros(len(scenes), queries.shape[1]).index_add(0, owner[asked], queries[asked])
    counts = torch.bincount(owner[asked], minlength=len(scenes)).clamp(min=1).to(queries.dtype)
    return by_tools, by_tools + sums * counts.rsqrt()[:, None]


def _unique(values: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct values, and where each stands first."""
    found, inverse = torch.unique(values, return_inverse=True)
    first = torch.full((len(found),), len(values), dtype=torch.long, device=values.device)
    places = torch.arange(len(values), device=values.device)
    return found, first.scatter_reduce(0, inverse, places, "amin")
