"""What MassTool computes, in training and in serving alike.

A query q has the encoder's unit vector x. Its neighbours n_1..n_K are the pool's queries nearest by cosine.

    detection   h = relu(W_h x),  p = sigmoid(w h): does q need a tool?
    graph       tool t:  y_t = sum of layers 0..L-1,  z_t = normal(sum of layers 0..L); layer 0 is text plus what was
                learned for the tool, the next ones come along the gold edges (graph.py)
    intent      a = softmax over [sink, x W n_1 .. x W n_K], neighbours under the threshold left out
                s_v = M_v sum_i a_i (w n_i + sum_t c_v(n_i, t) y_t),  v one of the views tool and scene
    transfer    j_v = sigmoid(G_v info(h)) * s_v  (or attention, concatenation, addition)

The sink takes the attention that no neighbour deserves: far from the pool the s_v fade and plain search remains. M_v
undoes the overlap of tools that read alike: it starts as the ridge inverse of their second moments, so that a
neighbour's vote counts for its own tools and for nobody near them.

The score and why it folds. Every term is matched with the same vector of the tool:

    score(q, t) = b_0 <x', z_t> + sum_v b_v <s_v, z_t> + sum_v d_v <j_v, z_t>,        x' = normal(x + A x)

An inner product is linear in its first argument, so the sum moves inside:

    score(q, t) = < b_0 x' + sum_v (b_v s_v + d_v j_v), z_t > = < u(q), z_t >

u(q) depends on the query alone (its text and its neighbours), z_t on the tool alone. So serving is the encoder, one
search for neighbours, and one search among the tools' vectors. The authors' score, the sum of six cosines of
{search, graph, joint} x {tool, scene} with one tool matrix, is the same with every term normalised and every weight 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from retrievers.masstool.graph import View, layers, to_askers, to_queries
from retrievers.masstool.hashed_words import logits
from retrievers.masstool.losses import NEVER, probabilities
from retrievers.masstool.neighbour_transfer import lent
from retrievers.masstool.normalize import unit
from retrievers.masstool.settings import MassToolSettings

VIEWS = ("tool", "scene")


@dataclass(frozen=True, slots=True)
class Near:
    """Neighbours of some queries."""

    rows: Tensor
    """(queries, neighbours) rows of the pool"""
    cosines: Tensor
    valid: Tensor
    """False where there is no neighbour."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools' vectors at one moment."""

    vectors: Tensor
    """z: (tools, dimensions), what scores are taken with"""
    signals: Tensor
    """y: (tools + 1, dimensions), what tools tell the queries that need them; the last row is zero"""
    whole: Tensor
    """The vectors before they were given length 1."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Queries on their way."""

    vectors: Tensor
    """u: (queries, dimensions)"""
    views: tuple[Tensor, Tensor]
    """Tool and scene view, for the contrastive loss."""


class Heads(nn.Module):
    """All that is learned on top of the encoder."""

    shares: Tensor
    """What dev chooses: of votes, of the attention's sharpness, of what tools learned, of the adapter, of lending."""
    threshold: Tensor
    words: Tensor
    """Of the words' share in detection (words.py); empty: they have none."""
    telling: Tensor
    """Shares of the tower's logit and of the words' logit."""

    def __init__(self, settings: MassToolSettings, dimensions: int, tools: int, pool: int) -> None:
        super().__init__()
        self.settings, d = settings, dimensions
        faithful, heat = settings.faithful, settings.train.temperature if settings.train else 0.05
        self.adapter = nn.Parameter(torch.zeros(d, d))
        self.residual = nn.Parameter(torch.zeros(tools, d))
        self.queries = nn.Parameter(torch.zeros(pool if faithful else 0, d))
        self.attention = nn.Parameter(torch.randn(d, d) if faithful else torch.eye(d) / heat)
        self.sink = nn.Parameter(torch.tensor(settings.threshold / heat))
        self.own = nn.Parameter(torch.tensor(1.0 if faithful else 0.2))
        self.graph = nn.Parameter(torch.tensor(1.0 if faithful else 0.2))
        self.mixing = nn.ParameterList([nn.Parameter(torch.eye(d)) for _ in VIEWS])
        self.weights = nn.Parameter(torch.tensor([0.3, 0.3, 0.3, 0.3]))
        """b_tool, b_scene, d_tool, d_scene; b_0 is 1."""
        self.tower = nn.Linear(d, d)
        self.decide = nn.Linear(d, 2 if faithful else 1)
        self.info = nn.Linear(d, d)
        wide = 2 * d if settings.modules.transfer == "concatenation" else d
        self.transfer = nn.ModuleList([nn.Linear(wide, d) for _ in VIEWS])
        self.drop = nn.Dropout(settings.train.dropout if settings.train else 0.0)
        # What dev chooses once training is over: how much of the learned to keep.
        self.register_buffer("shares", torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0 if faithful else 0.5]))
        self.register_buffer("threshold", torch.tensor(settings.threshold))
        self.register_buffer("words", torch.zeros(0))
        self.register_buffer("telling", torch.tensor([1.0, 0.0]))

    def whiten(self, vectors: Tensor, ridge: float = 0.1) -> None:
        """Starts M_v as the ridge inverse of the tools' second moments, scaled so that a tool's own vote is about 1."""
        if self.settings.faithful:
            return
        moments = vectors.T.double() @ vectors.double()
        d = len(moments)
        inverse = torch.linalg.inv(moments + ridge * moments.trace() / d * torch.eye(d, dtype=torch.float64))
        inverse /= ((vectors.double() @ inverse) * vectors.double()).sum(1).mean()
        with torch.no_grad():
            for each in self.mixing:
                each.copy_(inverse.float())

    @torch.no_grad()
    def start_at(self, cosine: float) -> None:
        """Starts threshold and sink where neighbours of this encoder usually are; .82 means nothing to another one."""
        heat = self.settings.train.temperature if self.settings.train else 0.05
        self.threshold.fill_(cosine)
        self.sink.fill_(cosine / heat)

    def tools(self, texts: Tensor, queries: Tensor, seen: View, lenders: Tensor | None = None) -> Tools:
        """The tools out of their texts' vectors, the pool's queries and the graph.

        `lenders` are the rows of tools that training needs; they lend to all others what they learned (lending.py).
        """
        base = self.base(texts)
        held = self.pool(queries)
        found = layers(seen, held, base, self.settings.layers if self.settings.modules.graph else 0, normal=True)
        step = self.graph if self.settings.faithful else self.kept(2, self.graph)
        sums = [base]
        for each in found[1:]:
            sums.append(sums[-1] + step * each)
        whole, signals = sums[-1], sums[max(0, len(sums) - 2)]
        if lenders is not None and len(lenders) < len(texts):
            others = torch.ones(len(texts), dtype=torch.bool, device=texts.device)
            others[lenders] = False
            whole, signals = (self._lent(texts, each, lenders, others) for each in (whole, signals))
        padded = torch.cat([signals, signals.new_zeros(1, signals.shape[1])])
        return Tools(unit(whole), padded, whole)

    def _lent(self, texts: Tensor, held: Tensor, lenders: Tensor, others: Tensor) -> Tensor:
        shifts = held[lenders] - texts[lenders]
        fresh = held.clone()
        fresh[others] = texts[others] + lent(texts[others], texts[lenders], shifts, float(self.shares[4]))
        return fresh

    def base(self, texts: Tensor) -> Tensor:
        """Layer 0 of the tools."""
        return texts + self.kept(2, self.residual) if self.settings.adapter else texts

    def kept(self, place: int, learned: Tensor) -> Tensor:
        """As much of what was learned as dev chose; all of it while it is being learned."""
        return learned if self.training else self.shares[place] * learned

    def pool(self, queries: Tensor) -> Tensor:
        """Layer 0 of the pool's queries."""
        if not self.settings.faithful:
            return queries
        confirmed = self.queries.new_zeros(len(queries) - len(self.queries), queries.shape[1])
        return queries + torch.cat([self.queries, confirmed])

    def forward(self, x: Tensor, near: Near, keys: Tensor, seen: View, tools: Tools, anchors: Tensor | None) -> Asked:
        """Query vectors. `keys` are the pool's; `anchors`, the queries' own rows there, are looked at if faithful."""
        if self.settings.faithful:
            return self._faithful(x, near, keys, seen, tools, anchors)
        text = unit(torch.addmm(x, x, self.kept(3, self.adapter))) if self.settings.adapter else x
        if self.training and self.settings.train:  # who has neighbours has them in front
            alone = self.settings.train.text_dropout * near.valid[:, :1]
            text = text * (torch.rand(len(x), 1, device=x.device) >= alone)
        searched = self.searched(x, near, keys, seen, tools)
        hidden, joint = self.hidden(x), list[Tensor]()
        if self.settings.modules.transfer != "none":
            info = self.informed(hidden)
            joint = [self.transferred(info, each, place) for place, each in enumerate(searched)]
        return Asked(text + self.kept(0, self.votes(searched, joint)), searched)

    def hidden(self, x: Tensor) -> Tensor:
        """The detection tower's state, which is transferred."""
        return torch.relu(self.tower(self.drop(x)))

    def needs(self, x: Tensor) -> Tensor:
        """Logits of needing a tool: (queries,), or (queries, 2) where faithful."""
        logits: Tensor = self.decide(self.hidden(x))
        return logits if self.settings.faithful else logits.squeeze(1)

    def likely(self, x: Tensor, texts: Sequence[str]) -> Tensor:
        """How likely each query needs a tool, by its vector and, where that helps, by its words."""
        found = self.needs(x)
        if not self.settings.faithful:
            found = self.telling[0] * found
        if len(self.words):
            found = found + self.telling[1] * logits(self.words, texts).to(found.device)
        return probabilities(found)

    def votes(self, searched: tuple[Tensor, Tensor], joint: Sequence[Tensor] = ()) -> Tensor:
        """What neighbours add to a query's vector; `joint`: by way of the detection tower."""
        intent = self.settings.modules.intent
        terms = [*(searched if intent else ()), *joint]
        if not terms:
            return torch.zeros_like(searched[0])
        whole = len(terms) == len(self.weights)
        weights = self.weights if whole else self.weights[:2] if intent else self.weights[2:]
        return (weights @ torch.stack(terms).flatten(1)).view_as(searched[0])

    def searched(self, x: Tensor, near: Near, keys: Tensor, seen: View, tools: Tools) -> tuple[Tensor, Tensor]:
        """SUIM: what the neighbours lend, by tool view and by scene view."""
        if not self.settings.modules.intent:
            return x, x
        if not len(keys):  # nobody was ever asked
            return torch.zeros_like(x), torch.zeros_like(x)
        held = keys[near.rows]
        share = self.attend(x, near, held)
        own = self.own * torch.bmm(share[:, None], held).squeeze(1)
        if self.settings.modules.graph:
            both = (to_askers(seen, tools.signals, near.rows, share) + own).unbind()
        else:
            both = (own,) * len(VIEWS)
        return both[0] @ self.mixing[0], both[1] @ self.mixing[1]

    def attend(self, x: Tensor, near: Near, held: Tensor) -> Tensor:
        """(queries, neighbours): each neighbour's share by its vector; what is missing to 1 is the sink's."""
        valid = near.valid & (near.cosines >= self.threshold) if self.settings.modules.filter else near.valid
        logits = torch.bmm(held, (x @ self.attention)[:, :, None]).squeeze(2)
        logits = self.kept(1, logits) + NEVER * ~valid
        if self.settings.faithful:
            return torch.softmax(logits, dim=-1) * valid
        sink = self.kept(1, self.sink).expand(len(x), 1)
        return torch.softmax(torch.cat([sink, logits], dim=1), dim=-1)[:, 1:]

    def informed(self, hidden: Tensor) -> Tensor:
        """What of the detection tower's state is told to retrieval."""
        return torch.relu(self.info(hidden))

    def transferred(self, informed: Tensor, searched: Tensor, place: int) -> Tensor:
        """AdaKT: what the detection tower knows reaches the searched vector."""
        info, layer = self.drop(informed), self.transfer[place]
        match self.settings.modules.transfer:
            case "gating":
                gated: Tensor = torch.sigmoid(layer(info)) * searched
                return gated
            case "addition":
                summed: Tensor = layer(info) + searched
                return summed
            case "concatenation":
                mixed: Tensor = layer(torch.cat([info, searched], dim=-1))
                return mixed
            case _:
                known = layer(info)
                scores = torch.stack([(searched * searched).sum(-1), (searched * known).sum(-1)], dim=-1)
                shares = torch.softmax(scores / searched.shape[-1] ** 0.5, dim=-1)
                attended: Tensor = shares[:, :1] * searched + shares[:, 1:] * known
                return attended

    def _faithful(self, x: Tensor, near: Near, keys: Tensor, seen: View, tools: Tools, anchors: Tensor | None) -> Asked:
        """The authors': six cosines; a training query's own gold tools are in its graph term."""
        held, share = self.pool(keys), self.attend(x, near, keys[near.rows])
        own = x if anchors is None else held[anchors]
        info = self.informed(self.hidden(x))
        total, graphs = x.new_zeros(x.shape), []
        for place, each in enumerate(VIEWS):
            flat = to_queries(seen, tools.signals, near.rows.flatten(), each == "scene")
            values = held[near.rows] + functional.normalize(flat, dim=-1).view(*near.rows.shape, -1)
            searched = torch.einsum("qk,qkd->qd", share, values)
            if not self.settings.modules.intent:
                searched = own
            graph = own
            if anchors is not None and self.settings.modules.graph:
                graph = own + functional.normalize(to_queries(seen, tools.signals, anchors, each == "scene"), dim=-1)
            terms = [graph] + ([searched] if self.settings.modules.intent else [])
            if self.settings.modules.transfer != "none":
                terms.append(self.transferred(info, searched, place))
            total = total + sum(functional.normalize(term, dim=-1) for term in terms)
            graphs.append(graph)
        return Asked(total, (graphs[0], graphs[1]))
