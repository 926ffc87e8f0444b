"""Query-tool and query-scene graphs with LightGCN propagation (arXiv 2002.02126): no weights, only degrees.

A scene is one gold set: the tools that some query needs together. Edges are one table, a row per query of the pool with
the rows of its gold tools, padded with the number of tools; signal tables end with a row of zeros for the padding.
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

from retrievers.masstool.settings import SceneView

MAX_DENSE_TOOLS = 4096
"""Up to this many tools, training uses a dense product: the gradient of a sparse sum has to sort first."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Gold edges of a pool of queries."""

    tools: Tensor
    """(queries, max gold tools) rows of tools; `num_tools` is padding"""
    scenes: Tensor
    """(queries,) scene of each query"""
    num_tools: int
    num_scenes: int
    is_edge: Tensor
    """(queries, max gold tools) False for padding"""
    by_tool: Tensor
    """(edges,) positions in the flat table, grouped by tool"""
    edge_queries: Tensor
    """(edges,) the query of each edge of `by_tool`"""
    tool_starts: Tensor
    """(tools,) start of each tool's edges in `by_tool`"""
    by_scene: Tensor
    """(queries,) rows of queries, grouped by scene"""
    scene_starts: Tensor
    """(scenes,) start of each scene's queries in `by_scene`"""

    def to(self, device: str | torch.device) -> Edges:
        """Copy to a device."""
        values = [getattr(self, item.name) for item in fields(self)]
        moved: list[Any] = [value.to(device) if torch.is_tensor(value) else value for value in values]
        return Edges(*moved)


def make_edges(gold: Sequence[Sequence[int]], num_tools: int) -> Edges:
    """Build edges from the gold rows of each query; a query may have none."""
    lengths = np.fromiter(map(len, gold), np.int64, len(gold))
    width = int(lengths.max(initial=1)) or 1
    tools = np.full((len(gold), width), num_tools, dtype=np.int64)
    is_edge = np.arange(width) < lengths[:, None]
    tools[is_edge] = np.fromiter(chain.from_iterable(gold), np.int64, lengths.sum())
    known: dict[tuple[int, ...], int] = {}
    scenes = np.fromiter((known.setdefault(tuple(sorted(rows)), len(known)) for rows in gold), np.int64, len(gold))
    by_tool, tool_starts = _group(tools.ravel(), num_tools)
    by_tool = by_tool[: lengths.sum()]
    groups = (by_tool, by_tool // width, tool_starts, *_group(scenes, len(known)))
    tables = [torch.from_numpy(table) for table in (is_edge, *groups)]
    return Edges(torch.from_numpy(tools), torch.from_numpy(scenes), num_tools, len(known), *tables)


def _group(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions sorted by value, and the start of each value of 0..count-1; larger values come last."""
    order = np.argsort(values, kind="stable")
    return order, np.searchsorted(values[order], np.arange(count))


@dataclass(frozen=True, slots=True)
class GraphView:
    """Visible edges with their propagation weights."""

    edges: Edges
    weights: Tensor
    """(2, queries, max gold tools) edge weights of the tool view and the scene view; 0: hidden.

    Tool view: 1 / sqrt(degree of query * degree of tool), so that popular tools weigh less. Scene view: the mean of the
    gold set."""
    scene_weights: Tensor
    """(queries,) 1 / sqrt(visible queries of the scene)"""


def make_views(edges: Edges, kept: Tensor, kept_scenes: Tensor, dtype: torch.dtype) -> list[GraphView]:
    """Build several views at once, from masks (views, queries, max gold tools) and (views, queries)."""
    count, visible, in_scene = len(kept), edges.is_edge & kept, edges.is_edge.any(1) & kept_scenes
    tools = torch.zeros(count, edges.num_tools + 1, dtype=dtype, device=kept.device)
    tools.scatter_add_(1, edges.tools.flatten().expand(count, -1), visible.flatten(1).to(dtype))
    queries = visible.sum(2, keepdim=True, dtype=dtype)
    by_tools = visible * (queries.clamp_(min=1) * tools.clamp_(min=1)[:, edges.tools]).rsqrt_()
    by_scenes = in_scene[:, :, None] * gold_shares(edges, dtype)
    scenes = torch.zeros(count, edges.num_scenes, dtype=dtype, device=kept.device)
    scenes.scatter_add_(1, edges.scenes.expand(count, -1), in_scene.to(dtype))
    scene_weights = in_scene * scenes.clamp_(min=1).rsqrt_()[:, edges.scenes]
    weights = torch.stack([by_tools, by_scenes], dim=1)
    return [GraphView(edges, *pair) for pair in zip(weights.unbind(), scene_weights.unbind(), strict=True)]


def full_view(edges: Edges) -> GraphView:
    """View of all edges, in double precision."""
    every = torch.ones(1, *edges.tools.shape, dtype=torch.bool, device=edges.tools.device)
    return make_views(edges, every, every[:, :, 0], torch.float64)[0]


def draw_dropout(edges: Edges, generator: torch.Generator) -> Tensor:
    """Uniform numbers, one per edge to a tool followed by one per query's edge to its scene."""
    return torch.rand(edges.tools.numel() + len(edges.tools), generator=generator, device=edges.tools.device)


def dropout_views(edges: Edges, held_out: Tensor, dropout: float, draws: Sequence[Tensor]) -> list[GraphView]:
    """One view per draw: queries held out, (draws, queries), have no edges; a share of the other edges is dropped."""
    kept, size = torch.stack(list(draws)) >= dropout, edges.tools.numel()
    tools, scenes = kept[:, :size].view(-1, *edges.tools.shape), kept[:, size:]
    return make_views(edges, tools & ~held_out[:, :, None], scenes & ~held_out, torch.float32)


def gold_shares(edges: Edges, dtype: torch.dtype = torch.float32) -> Tensor:
    """(queries, max gold tools) share of each tool in its query's gold set; rows sum to 1."""
    return edges.is_edge.to(dtype) / edges.is_edge.sum(1, keepdim=True).clamp(min=1)


def column_of(tools: Tensor, columns: Tensor, num_tools: int) -> Tensor:
    """Column index of each tool; len(columns) where it has none."""
    column = torch.full((num_tools + 1,), len(columns), dtype=torch.long, device=columns.device)
    return column.index_copy_(0, columns, torch.arange(len(columns), device=columns.device))[tools]


def scatter_columns(columns: Tensor, values: Tensor, count: int) -> Tensor:
    """(rows, count) values at their columns, 0 elsewhere; column `count` is dropped."""
    return values.new_zeros(len(columns), count + 1).scatter_(1, columns, values)[:, :-1]


def scene_members(edges: Edges) -> Tensor:
    """(scenes, max gold tools) tools of each scene, padded as edges are."""
    return edges.tools[distinct(edges.scenes)[1]]


def to_tools(view: GraphView, queries: Tensor) -> Tensor:
    """(tools, dimensions) sum of the query vectors of each tool."""
    edges = view.edges
    weights = view.weights[0].flatten()[edges.by_tool].to(queries.dtype)
    return functional.embedding_bag(
        edges.edge_queries, queries, edges.tool_starts, per_sample_weights=weights, mode="sum"
    )


def to_scenes(view: GraphView, queries: Tensor) -> Tensor:
    """(scenes, dimensions) sum of the query vectors of each scene."""
    edges = view.edges
    weights = view.scene_weights[edges.by_scene].to(queries.dtype)
    return functional.embedding_bag(edges.by_scene, queries, edges.scene_starts, per_sample_weights=weights, mode="sum")


def edge_weights(view: GraphView, rows: Tensor, scene_view: SceneView) -> Tensor:
    """(2, *rows, max gold tools) weights of the edges of these pool queries, by both views.

    A query has one scene, so a layer over the query-scene graph divides the scene's mean by the root of its degree.
    """
    weights = view.weights[:, rows]
    if scene_view == "mean":
        return weights
    return torch.stack([weights[0], weights[1] * view.scene_weights[rows][..., None]])


def to_queries(view: GraphView, signals: Tensor, rows: Tensor, scene: bool, scene_view: SceneView = "mean") -> Tensor:
    """(rows, dimensions) sum of the tool signals of these pool queries, by the tool view or the scene view."""
    weights = edge_weights(view, rows, scene_view)[int(scene)].to(signals.dtype)
    return functional.embedding_bag(view.edges.tools[rows], signals, per_sample_weights=weights, mode="sum")


def to_neighbours(
    view: GraphView, signals: Tensor, rows: Tensor, attention: Tensor, scene_view: SceneView = "mean"
) -> Tensor:
    """(2, queries, dimensions) tool signals that reach new queries through their neighbours, by both views.

    `rows` and `attention`, both (queries, neighbours), are the neighbours and their weights.
    """
    tools = view.edges.tools[rows].flatten(1)
    weights = (edge_weights(view, rows, scene_view).to(signals.dtype) * attention[:, :, None]).flatten(2)
    if weights.requires_grad and len(signals) <= MAX_DENSE_TOOLS:
        votes = signals.new_zeros(*weights.shape[:2], len(signals))
        return votes.scatter_add_(2, tools.expand_as(weights), weights) @ signals
    flat = tools.expand_as(weights).flatten(0, 1)
    sums = functional.embedding_bag(flat, signals, per_sample_weights=weights.flatten(0, 1), mode="sum")
    return sums.view(*weights.shape[:2], -1)


def distinct(values: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct values in order, and the first position of each."""
    unique, inverse = torch.unique(values, return_inverse=True)
    first = torch.full((len(unique),), len(values), dtype=torch.long, device=values.device)
    positions = torch.arange(len(values), device=values.device)
    return unique, first.scatter_reduce(0, inverse, positions, "amin")
