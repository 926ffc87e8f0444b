"""MassTool's heads on top of the encoder, in training; serving/ has the same formulas in numpy.

A query q has the encoder's unit vector x. Its neighbours n_1..n_K are the pool's queries nearest by cosine.

    detection   h = relu(W_h x),  p = sigmoid(w h): does q need a tool?
    graph       tool t:  y_t = text plus the learned residual,  z_t = normal(y_t + g * propagated queries) (graph.py)
    intent      a = softmax over [sink, x W n_1 .. x W n_K], neighbours under the threshold left out
                s_v = M_v sum_i a_i (w n_i + sum_t c_v(n_i, t) y_t),  v one of the views tool and scene
    transfer    j_v = sigmoid(G_v info(h)) * s_v  (or attention, concatenation, addition; detection_transfer.py)

The sink takes the attention that no neighbour deserves: far from the pool the s_v vanish and plain search remains. M_v
undoes the overlap of tools with similar texts: it starts as the ridge inverse of their second moments, so that a
neighbour votes for its own tools and not for those near them.

The score and why it folds. Every term is matched with the same vector of the tool:

    score(q, t) = b_0 <x', z_t> + sum_v b_v <s_v, z_t> + sum_v d_v <j_v, z_t>,        x' = normal(x + A x)

An inner product is linear in its first argument, so the sum moves inside:

    score(q, t) = < b_0 x' + sum_v (b_v s_v + d_v j_v), z_t > = < u(q), z_t >

u(q) depends on the query alone (its text and its neighbours), z_t on the tool alone. So serving is the encoder, one
search for neighbours, and one search among the tools' vectors. The authors' score (faithful.py), a sum of six cosines
of {search, graph, joint} x {tool, scene} with one tool matrix, is the same with all terms normalised and all weights 1.
The paper's (`score: joint`) is sum_v <normal(j_v), z_t>, folded alike; where no neighbour counts, x' alone remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from retrievers.masstool import losses
from retrievers.masstool.detection_transfer import transfer_detection
from retrievers.masstool.graph import GraphView, to_neighbours, to_queries, to_tools
from retrievers.masstool.hashed_words import word_logits
from retrievers.masstool.neighbour_transfer import transferred_shifts
from retrievers.masstool.normalize import normalize
from retrievers.masstool.serving.heads import MASKED, SCALES, TEMPERATURE, VIEWS
from retrievers.masstool.settings import MassToolSettings
from retrievers.masstool.vectors import Neighbours, QueryVectors, ToolVectors

DROPOUT = 0.1
WEIGHT_DECAY = 1e-4


class Heads(nn.Module):
    """Everything that is trained on top of the encoder. faithful.py overrides what the authors do differently."""

    num_cosines: ClassVar[int] = 1
    """Largest score; `score: joint` has 2."""
    pool_includes_dev: ClassVar[bool] = True
    """Dev queries join the pool once training is over."""
    scales: Tensor
    threshold: Tensor
    word_weights: Tensor
    """Weights of hashed_words.py; empty: words do not count in detection."""
    detection_mix: Tensor
    """Factors of the tower's logit and of the words' logit."""

    def __init__(self, settings: MassToolSettings, dimensions: int, tools: int, pool: int) -> None:
        super().__init__()
        self.settings, d, modules = settings, dimensions, settings.modules
        self.has_sink, self.uses_words = modules.sink, modules.words
        self.vote_scale = float(2 if modules.score == "joint" else self.num_cosines)
        """Weight of confirmed queries' votes beside the score."""
        self.adapter = nn.Parameter(torch.zeros(d, d))
        self.residual = nn.Parameter(torch.zeros(tools, d))
        self.queries = nn.Parameter(torch.zeros(self.free_queries(pool), d))
        self.attention = nn.Parameter(self.initial_attention(d))
        self.sink = nn.Parameter(torch.tensor(settings.threshold / TEMPERATURE))
        self.neighbour_weight = nn.Parameter(torch.tensor(0.2))
        self.graph_weight = nn.Parameter(torch.tensor(0.2))
        self.mixing = nn.ParameterList([nn.Parameter(torch.eye(d)) for _ in VIEWS])
        self.vote_weights = nn.Parameter(torch.tensor([0.3, 0.3, 0.3, 0.3]))
        """b_tool, b_scene, d_tool, d_scene; b_0 is 1."""
        self.tower = nn.Linear(d, d)
        self.needs_tool = nn.Linear(d, self.detection_outputs())
        self.info = nn.Linear(d, d)
        width = 2 * d if modules.transfer == "concatenation" else d
        self.transfer = nn.ModuleList([nn.Linear(width, d) for _ in VIEWS])
        self.drop = nn.Dropout(DROPOUT if settings.train else 0.0)
        self.register_buffer("scales", torch.tensor([1.0, 1.0, 1.0, 1.0, 0.5]))
        self.register_buffer("threshold", torch.tensor(settings.threshold))
        self.register_buffer("word_weights", torch.zeros(0))
        self.register_buffer("detection_mix", torch.tensor([1.0, 0.0]))
        if modules.attention == "graph":
            self.scene_attention = nn.Parameter(self.initial_attention(d))
        self.freeze_parts()

    def freeze_parts(self) -> None:
        """Leave parts that are switched off as they start: no adapter, no mixing, weights of 1."""
        modules = self.settings.modules
        self.adapter.requires_grad_(modules.adapter)
        self.mixing.requires_grad_(modules.mixing)
        if not modules.learned_weights:
            for weights in (self.neighbour_weight, self.graph_weight, self.vote_weights):
                weights.requires_grad_(False).fill_(1.0)

    def free_queries(self, pool: int) -> int:
        """Number of pool queries with a free vector of their own."""
        return 0

    def initial_attention(self, dimensions: int) -> Tensor:
        return torch.eye(dimensions) / TEMPERATURE

    def detection_outputs(self) -> int:
        return 1

    def initialize(self, trained_tools: Tensor, typical_cosine: float | None) -> None:
        """Start M_v as the ridge inverse of the tools' second moments, scaled so that a tool's own vote is about 1; and
        threshold and sink at a typical cosine of neighbours, since .82 means nothing to another encoder."""
        vectors = trained_tools.double()
        moments = vectors.T @ vectors
        d = len(moments)
        inverse = torch.linalg.inv(moments + 0.1 * moments.trace() / d * torch.eye(d, dtype=torch.float64))
        inverse /= ((vectors @ inverse) * vectors).sum(1).mean()
        with torch.no_grad():
            for matrix in self.mixing if self.settings.modules.mixing else ():
                matrix.copy_(inverse.float())
            if typical_cosine is not None:
                self.threshold.fill_(typical_cosine)
                self.sink.fill_(typical_cosine / TEMPERATURE)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Groups for AdamW: free vectors decay, single numbers move ten times as fast."""
        free = [self.adapter, self.residual, self.queries]
        single = [self.sink, self.neighbour_weight, self.graph_weight, self.vote_weights]
        known = {id(parameter) for parameter in (*free, *single)}
        rest = [parameter for parameter in self.parameters() if id(parameter) not in known]
        return [
            {"params": free, "weight_decay": WEIGHT_DECAY, "speed": 1.0},
            {"params": single, "weight_decay": 0.0, "speed": 10.0},
            {"params": rest, "weight_decay": 0.0, "speed": 1.0},
        ]

    def scaled(self, name: str, learned: Tensor) -> Tensor:
        """A learned value times the factor that dev chose; unscaled in training."""
        return learned if self.training else self.scales[SCALES.index(name)] * learned

    def tools(self, texts: Tensor, queries: Tensor, view: GraphView, trained: Tensor | None = None) -> ToolVectors:
        """Tool vectors from their texts' vectors, the pool's queries and the graph.

        `trained`: rows of tools that training queries need; all others get shifts from them (neighbour_transfer.py).
        """
        signals = texts + self.scaled("tools", self.residual) if self.settings.train else texts
        whole = signals
        if self.settings.modules.graph:
            propagated = normalize(to_tools(view, self.pool(queries)))
            whole = signals + self.scaled("tools", self.graph_weight) * propagated
        if trained is not None and len(trained) < len(texts):
            untrained = torch.ones(len(texts), dtype=torch.bool, device=texts.device)
            untrained[trained] = False
            whole, signals = (self._transfer_shifts(texts, table, trained, untrained) for table in (whole, signals))
        padded = torch.cat([signals, signals.new_zeros(1, signals.shape[1])])
        return ToolVectors(normalize(whole), padded, whole)

    def _transfer_shifts(self, texts: Tensor, table: Tensor, trained: Tensor, untrained: Tensor) -> Tensor:
        shifts = table[trained] - texts[trained]
        moved, new = table.clone(), texts[untrained]
        moved[untrained] = new + transferred_shifts(new, texts[trained], shifts, self.transfer_strength())
        return moved

    def transfer_strength(self) -> float:
        return float(self.scales[SCALES.index("transfer")])

    def pool(self, queries: Tensor) -> Tensor:
        """Vectors of the pool's queries in the graph."""
        return queries

    def forward(
        self, x: Tensor, near: Neighbours, keys: Tensor, view: GraphView, tools: ToolVectors, rows: Tensor | None
    ) -> QueryVectors:
        """Query vectors. `keys` are the pool's; `rows` are the queries' own rows there in training."""
        text = normalize(torch.addmm(x, x, self.scaled("adapter", self.adapter))) if self.settings.train else x
        if self.training and self.settings.train:  # the first neighbour is valid if any is
            probability = self.settings.train.text_dropout * near.valid[:, :1]
            text = text * (torch.rand(len(x), 1, device=x.device) >= probability)
        searched = self.search_neighbours(x, near, keys, view, tools)
        hidden, joint = self.hidden(x), list[Tensor]()
        if self.settings.modules.transfer != "none":
            info = torch.relu(self.info(hidden))
            joint = [self.joint_vectors(info, vectors, index) for index, vectors in enumerate(searched)]
        if self.settings.modules.score == "joint":
            return QueryVectors(joint_product(text, searched, joint), searched)
        return QueryVectors(text + self.scaled("votes", self.votes(searched, joint)), searched)

    def hidden(self, x: Tensor) -> Tensor:
        """Hidden state of the detection tower."""
        return torch.relu(self.tower(self.drop(x)))

    def detection_logits(self, x: Tensor) -> Tensor:
        """Logits of needing a tool."""
        logits: Tensor = self.needs_tool(self.hidden(x)).squeeze(1)
        return logits

    def detection_loss(self, x: Tensor, needs: Tensor) -> Tensor:
        return losses.detection(self.detection_logits(x), needs)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities of needing a tool."""
        return torch.sigmoid(logits)

    def detect(self, x: Tensor, texts: Sequence[str]) -> Tensor:
        """Probability that each query needs a tool, by its vector and, where dev chose so, by its words."""
        logits = self.detection_mix[0] * self.detection_logits(x)
        if len(self.word_weights):
            words = torch.from_numpy(word_logits(self.word_weights.cpu().numpy(), texts))
            logits = logits + self.detection_mix[1] * words.to(logits.device)
        return self.probabilities(logits)

    def votes(self, searched: tuple[Tensor, Tensor], joint: Sequence[Tensor] = ()) -> Tensor:
        """Weighted sum of the neighbours' terms; `joint`: the terms by way of the detection tower."""
        intent = self.settings.modules.intent
        terms = [*(searched if intent else ()), *joint]
        if not terms:
            return torch.zeros_like(searched[0])
        whole = len(terms) == len(self.vote_weights)
        weights = self.vote_weights if whole else self.vote_weights[:2] if intent else self.vote_weights[2:]
        return (weights @ torch.stack(terms).flatten(1)).view_as(searched[0])

    def search_neighbours(
        self, x: Tensor, near: Neighbours, keys: Tensor, view: GraphView, tools: ToolVectors
    ) -> tuple[Tensor, Tensor]:
        """SUIM: what the neighbours contribute, by tool view and by scene view."""
        if not self.settings.modules.intent:
            return x, x
        if not len(keys):
            return torch.zeros_like(x), torch.zeros_like(x)
        vectors = keys[near.rows]
        modules = self.settings.modules
        if modules.attention == "graph":
            both = self._search_by_graph(x, near, vectors, view, tools)
            return both[0] @ self.mixing[0], both[1] @ self.mixing[1]
        attention = self.attend(x, near, vectors)
        own = self.neighbour_weight * torch.bmm(attention[:, None], vectors).squeeze(1)
        if modules.graph:
            both = (to_neighbours(view, tools.signals, near.rows, attention, modules.scene_view) + own).unbind()
        else:
            both = (own,) * len(VIEWS)
        return both[0] @ self.mixing[0], both[1] @ self.mixing[1]

    def _search_by_graph(
        self, x: Tensor, near: Neighbours, vectors: Tensor, view: GraphView, tools: ToolVectors
    ) -> tuple[Tensor, ...]:
        """Attend to the neighbours' vectors in the graph, per view; costs as many sums as there are neighbours."""
        modules, flat, both = self.settings.modules, near.rows.flatten(), list[Tensor]()
        for name in VIEWS:
            values = self.neighbour_weight * vectors
            if modules.graph:
                signals = to_queries(view, tools.signals, flat, name == "scene", modules.scene_view)
                values = values + signals.view_as(vectors)
            both.append(torch.bmm(self.attend(x, near, values, name)[:, None], values).squeeze(1))
        return tuple(both)

    def attend(self, x: Tensor, near: Neighbours, vectors: Tensor, view: str = "tool") -> Tensor:
        """(queries, neighbours) attention; what is missing to 1 goes to the sink, where there is one."""
        valid = near.valid & (near.cosines >= self.threshold) if self.settings.modules.filter else near.valid
        matrix = self.scene_attention if view == "scene" else self.attention
        logits = torch.bmm(vectors, (x @ matrix)[:, :, None]).squeeze(2)
        logits = self.scaled("sharpness", logits) + MASKED * ~valid
        if not self.has_sink:
            return torch.softmax(logits, dim=-1) * valid
        sink = self.scaled("sharpness", self.sink).expand(len(x), 1)
        return torch.softmax(torch.cat([sink, logits], dim=1), dim=-1)[:, 1:]

    def joint_vectors(self, info: Tensor, searched: Tensor, index: int) -> Tensor:
        """AdaKT: bring the detection tower's state into the searched vector of one view."""
        return transfer_detection(self.settings.modules.transfer, self.transfer[index], self.drop(info), searched)


def joint_product(text: Tensor, searched: Sequence[Tensor], joint: Sequence[Tensor]) -> Tensor:
    """Sum of the unit vectors of `joint`; the text where no neighbour counts."""
    alone = ~torch.stack(list(searched)).any(2).any(0)
    return torch.where(alone[:, None], text, normalize(joint[0]) + normalize(joint[1]))
