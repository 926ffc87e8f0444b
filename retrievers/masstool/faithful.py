"""The authors' MassTool (`faithful: true`), for comparison with the paper.

Training queries see their own gold edges (a leak), pool queries have free vectors, the score is a sum of six cosines,
lists hold ten tools, detection is a double softmax. Words and dev queries are not used, nothing is calibrated but the
detector's threshold. Modules and training settings of the paper's form (settings.py) apply here too where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from retrievers.masstool import losses
from retrievers.masstool.graph import GraphView, distinct, draw_dropout, dropout_views, to_queries
from retrievers.masstool.model import Heads, joint_product
from retrievers.masstool.serving.heads import SCALES, VIEWS
from retrievers.masstool.settings import MassToolSettings
from retrievers.masstool.training.step_sampler import EDGE_DROPOUT, Step, select_neighbours
from retrievers.masstool.training.trainer import HeadTrainer
from retrievers.masstool.vectors import Neighbours, QueryVectors, ToolVectors


class FaithfulHeads(Heads):
    """The authors' model."""

    num_cosines: ClassVar[int] = 6
    pool_includes_dev: ClassVar[bool] = False

    def __init__(self, settings: MassToolSettings, dimensions: int, tools: int, pool: int) -> None:
        super().__init__(settings, dimensions, tools, pool)
        self.has_sink = self.uses_words = False
        with torch.no_grad():
            self.graph_weight.fill_(1.0)
            self.neighbour_weight.fill_(1.0)
        self.scales[SCALES.index("transfer")] = 0.0

    def free_queries(self, pool: int) -> int:
        return pool

    def initial_attention(self, dimensions: int) -> Tensor:
        return torch.randn(dimensions, dimensions)

    def detection_outputs(self) -> int:
        return 2

    def initialize(self, trained_tools: Tensor, typical_cosine: float | None) -> None:
        """Keep mixing, threshold and sink as they are."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """All but the single numbers and the mixing, which stay fixed; nothing decays."""
        fixed = [self.sink, self.neighbour_weight, self.graph_weight, self.vote_weights, *self.mixing]
        skipped = {id(parameter) for parameter in fixed}
        kept = [parameter for parameter in self.parameters() if id(parameter) not in skipped]
        return [{"params": kept, "weight_decay": 0.0, "speed": 1.0}]

    def pool(self, queries: Tensor) -> Tensor:
        """Pool queries plus their free vectors; queries that joined the pool later have none."""
        joined = self.queries.new_zeros(len(queries) - len(self.queries), queries.shape[1])
        return queries + torch.cat([self.queries, joined])

    def detection_logits(self, x: Tensor) -> Tensor:
        """(queries, 2) logits of not needing and of needing a tool."""
        logits: Tensor = self.needs_tool(self.hidden(x))
        return logits

    def detection_loss(self, x: Tensor, needs: Tensor) -> Tensor:
        return double_softmax(self.detection_logits(x), needs)

    def probabilities(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-1)[:, 1]

    def forward(
        self, x: Tensor, near: Neighbours, keys: Tensor, view: GraphView, tools: ToolVectors, rows: Tensor | None
    ) -> QueryVectors:
        """Sum of six unit vectors; a training query's own gold tools are in its graph term.

        Every query has one scene, and terms of the graph are normalised: a propagated scene view is the mean again.
        """
        modules, pool = self.settings.modules, self.pool(keys)
        attention = self.attend(x, near, keys[near.rows])
        own = x if rows is None else pool[rows]
        info = torch.relu(self.info(self.hidden(x)))
        total, graphs, joint, by_view = x.new_zeros(x.shape), [], list[Tensor](), list[Tensor]()
        for index, name in enumerate(VIEWS):
            flat = to_queries(view, tools.signals, near.rows.flatten(), name == "scene")
            values = pool[near.rows] + functional.normalize(flat, dim=-1).view(*near.rows.shape, -1)
            graph = own
            if rows is not None and modules.graph:
                graph = own + functional.normalize(to_queries(view, tools.signals, rows, name == "scene"), dim=-1)
            if modules.attention == "graph":
                attention = self.attend(graph, near, values, name)
            searched = torch.einsum("qk,qkd->qd", attention, values) if modules.intent else own
            terms = [graph] + ([searched] if modules.intent else [])
            if modules.transfer != "none":
                terms.append(self.joint_vectors(info, searched, index))
            total = total + sum(functional.normalize(term, dim=-1) for term in terms)
            graphs.append(graph)
            joint, by_view = [*joint, terms[-1]], [*by_view, searched]
        if modules.score == "joint":
            total = joint_product(own, by_view, joint)
        return QueryVectors(total, (graphs[0], graphs[1]))


class FaithfulTrainer(HeadTrainer):
    """The authors' training, except that dev selects the epoch and not test."""

    heads_class: ClassVar[type[Heads]] = FaithfulHeads

    def unseen_tool_weight(self) -> float:
        return 0.0

    def steps(self, order: Tensor, generator: torch.Generator) -> Iterator[Step]:
        """Batches that see one graph per epoch, with their own edges. The loss draws between steps, labels last."""
        sampler, edges = self.sampler, self.edges
        held_out = torch.zeros(1, len(edges.tools), dtype=torch.bool, device=order.device)
        [view] = dropout_views(edges, held_out, EDGE_DROPOUT, [draw_dropout(edges, generator)])
        for rows in torch.split(order, sampler.batch_size):
            fill = sampler.draw_fill(generator)
            near = select_neighbours(sampler.near, rows, None, sampler.neighbours)
            scenes, first = distinct(edges.scenes[rows])
            yield Step(rows, view, near, first, scenes, fill, None)

    def retrieval_loss(self, scores: Tensor, gold: Tensor, generator: torch.Generator) -> Tensor:
        return losses.short_lists(scores, (gold > 0).to(scores.dtype), generator)

    def warm_up(self) -> int:
        return 0


def double_softmax(logits: Tensor, needs: Tensor) -> Tensor:
    """Cross entropy, which applies a softmax, of probabilities that already are one."""
    return functional.cross_entropy(torch.softmax(logits, dim=-1), needs.long())


def trainer_class(settings: MassToolSettings) -> type[HeadTrainer]:
    """Class of the trainer, which names that of the heads, for these settings."""
    return FaithfulTrainer if settings.faithful else HeadTrainer
