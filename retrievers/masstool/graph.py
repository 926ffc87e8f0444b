"""The graphs: which queries of the pool need which tools, which of them share a scene, and what flows along the edges.

Edges are kept as a table: one row a query of the pool, its gold tools' rows, padded with the number of tools, where a
row of zeros stands. What is propagated is LightGCN's sum (He et al., 2020): no weights, only degrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from retrievers.masstool.normalize import unit

DENSE = 4096
"""Up to so many tools a product of matrices brings their signals to queries in training: a sparse sum's gradient has to
sort first, which is twenty launches on a GPU."""


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
    real: Tensor
    """(queries, most gold tools): True where there is an edge."""
    by_tool: Tensor
    """(edges,) places in the flat table, the edges of one tool together"""
    givers: Tensor
    """(edges,) the query of each of these"""
    tool_starts: Tensor
    """(tools,) where the edges of each begin in `by_tool`"""
    by_scene: Tensor
    """(queries,) rows of queries, those of one scene together"""
    scene_starts: Tensor
    """(scenes,) where the queries of each begin in `by_scene`"""

    def to(self, device: str | torch.device) -> Edges:
        """The same elsewhere."""
        held = [getattr(self, each.name) for each in fields(self)]
        moved: list[Any] = [each.to(device) if torch.is_tensor(each) else each for each in held]
        return Edges(*moved)


def make_edges(gold: Sequence[Sequence[int]], count: int) -> Edges:
    """Edges out of lists of rows; a query without any stands alone."""
    lengths = np.fromiter(map(len, gold), np.int64, len(gold))
    width = int(lengths.max(initial=1)) or 1
    tools = np.full((len(gold), width), count, dtype=np.int64)
    real = np.arange(width) < lengths[:, None]
    tools[real] = np.fromiter(chain.from_iterable(gold), np.int64, lengths.sum())
    known: dict[tuple[int, ...], int] = {}
    scenes = np.fromiter((known.setdefault(tuple(sorted(each)), len(known)) for each in gold), np.int64, len(gold))
    by_tool, tool_starts = _grouped(tools.ravel(), count)
    by_tool = by_tool[: lengths.sum()]
    groups = (by_tool, by_tool // width, tool_starts, *_grouped(scenes, len(known)))
    tables = [torch.from_numpy(each) for each in (real, *groups)]
    return Edges(torch.from_numpy(tools), torch.from_numpy(scenes), count, len(known), *tables)


def _grouped(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the values, equal ones together, and where each of 0..count-1 begins; larger ones are at the end."""
    order = np.argsort(values, kind="stable")
    return order, np.searchsorted(values[order], np.arange(count))


@dataclass(frozen=True, slots=True)
class View:
    """The edges that are seen at one moment, with the weights that follow from them."""

    edges: Edges
    weights: Tensor
    """(2, queries, most gold tools): what goes along an edge in the tool view and in the scene view; 0: not seen.

    Tool view: one over the roots of both degrees, so that popular tools speak softly. Scene view: the mean of the gold
    set, which is what a scene's node holds; one scene a query, so that nothing else weighs."""
    scenes: Tensor
    """(queries,): what goes from a query to its scene, one over the root of the queries that are seen there"""


def views(edges: Edges, kept: Tensor, kept_scenes: Tensor, dtype: torch.dtype) -> list[View]:
    """One for each row: which edges to tools (rows, queries, most gold tools) and to scenes (rows, queries) are kept.

    Many at once, since a GPU takes as long to be told of one as of all.
    """
    rows, seen, asked = len(kept), edges.real & kept, edges.real.any(1) & kept_scenes
    tools = torch.zeros(rows, edges.count + 1, dtype=dtype, device=kept.device)
    tools.scatter_add_(1, edges.tools.flatten().expand(rows, -1), seen.flatten(1).to(dtype))
    queries = seen.sum(2, keepdim=True, dtype=dtype)
    by_tools = seen * (queries.clamp_(min=1) * tools.clamp_(min=1)[:, edges.tools]).rsqrt_()
    by_scenes = asked[:, :, None] * shares(edges, dtype)
    scenes = torch.zeros(rows, edges.sets, dtype=dtype, device=kept.device)
    scenes.scatter_add_(1, edges.scenes.expand(rows, -1), asked.to(dtype))
    given = asked * scenes.clamp_(min=1).rsqrt_()[:, edges.scenes]
    both = torch.stack([by_tools, by_scenes], dim=1)
    return [View(edges, *each) for each in zip(both.unbind(), given.unbind(), strict=True)]


def view(edges: Edges) -> View:
    """All edges, in double precision: those who use them round as they need it."""
    every = torch.ones(1, *edges.tools.shape, dtype=torch.bool, device=edges.tools.device)
    return views(edges, every, every[:, :, 0], torch.float64)[0]


def draw(edges: Edges, generator: torch.Generator) -> Tensor:
    """A number between 0 and 1 for every edge to a tool, and behind them for every query's edge to its scene."""
    return torch.rand(edges.tools.numel() + len(edges.tools), generator=generator, device=edges.tools.device)


def without(edges: Edges, held_out: Tensor, dropout: float, drawn: Sequence[Tensor]) -> list[View]:
    """The graph as unseen queries meet it, one for each draw: those held out, (draws, queries), have no edges, and a
    share of the others is dropped."""
    kept, size = torch.stack(list(drawn)) >= dropout, edges.tools.numel()
    tools, scenes = kept[:, :size].view(-1, *edges.tools.shape), kept[:, size:]
    return views(edges, tools & ~held_out[:, :, None], scenes & ~held_out, torch.float32)


def shares(edges: Edges, dtype: torch.dtype = torch.float32) -> Tensor:
    """(queries, most gold tools): each tool's share in its query's gold set; they add up to 1."""
    return edges.real.to(dtype) / edges.real.sum(1, keepdim=True).clamp(min=1)


def placed(tools: Tensor, columns: Tensor, count: int) -> Tensor:
    """Which column each of these tools is, of `count` tools there are; one behind the last: none."""
    place = torch.full((count + 1,), len(columns), dtype=torch.long, device=columns.device)
    return place.index_copy_(0, columns, torch.arange(len(columns), device=columns.device))[tools]


def spread(places: Tensor, values: Tensor, count: int) -> Tensor:
    """(queries, count): the values in their columns, 0 elsewhere; those in a column behind the last are left out."""
    return values.new_zeros(len(places), count + 1).scatter_(1, places, values)[:, :-1]


def scene_members(edges: Edges) -> Tensor:
    """(scenes, most gold tools): the tools of every scene, padded as edges are."""
    return edges.tools[distinct(edges.scenes)[1]]


def to_tools(seen: View, queries: Tensor) -> Tensor:
    """(tools, dimensions): what the queries' vectors bring to their tools."""
    edges = seen.edges
    weights = seen.weights[0].flatten()[edges.by_tool].to(queries.dtype)
    return functional.embedding_bag(edges.givers, queries, edges.tool_starts, per_sample_weights=weights, mode="sum")


def to_scenes(seen: View, queries: Tensor) -> Tensor:
    """(scenes, dimensions): what the queries' vectors bring to their scenes."""
    edges = seen.edges
    weights = seen.scenes[edges.by_scene].to(queries.dtype)
    return functional.embedding_bag(edges.by_scene, queries, edges.scene_starts, per_sample_weights=weights, mode="sum")


def to_queries(seen: View, signals: Tensor, rows: Tensor, scene: bool) -> Tensor:
    """What tools bring to some queries of the pool by one view, (rows, dimensions)."""
    weights = seen.weights[int(scene)][rows].to(signals.dtype)
    return functional.embedding_bag(seen.edges.tools[rows], signals, per_sample_weights=weights, mode="sum")


def to_askers(seen: View, signals: Tensor, rows: Tensor, attention: Tensor) -> Tensor:
    """What tools bring by both views to queries that look at some of the pool, (2, queries, dimensions).

    `rows` and `attention`, (queries, neighbours), tell at whom they look and how much.
    """
    tools = seen.edges.tools[rows].flatten(1)
    weights = (seen.weights[:, rows].to(signals.dtype) * attention[:, :, None]).flatten(2)
    if weights.requires_grad and len(signals) <= DENSE:
        votes = signals.new_zeros(*weights.shape[:2], len(signals))
        return votes.scatter_add_(2, tools.expand_as(weights), weights) @ signals
    flat = tools.expand_as(weights).flatten(0, 1)
    found = functional.embedding_bag(flat, signals, per_sample_weights=weights.flatten(0, 1), mode="sum")
    return found.view(*weights.shape[:2], -1)


def layers(seen: View, queries: Tensor, tools: Tensor, count: int, normal: bool) -> list[Tensor]:
    """The tools' vectors layer by layer, the first as given. `normal`: later ones have length 1, as the authors do."""
    found, held = [tools], queries
    for layer in range(count):
        fresh = to_tools(seen, held)
        if layer + 1 < count:
            padded = torch.cat([found[-1], found[-1].new_zeros(1, tools.shape[1])])
            held = to_queries(seen, padded, torch.arange(len(queries), device=queries.device), scene=False)
        found.append(unit(fresh) if normal else fresh)
    return found


def distinct(values: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct values, in order, and where each stands first."""
    found, inverse = torch.unique(values, return_inverse=True)
    first = torch.full((len(found),), len(values), dtype=torch.long, device=values.device)
    places = torch.arange(len(values), device=values.device)
    return found, first.scatter_reduce(0, inverse, places, "amin")
