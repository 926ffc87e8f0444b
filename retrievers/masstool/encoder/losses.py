"""What the encoder is tuned for: the right tools, and beside them scenes, neighbours' votes, and detection.

tools       cross entropy of softmax(<x, d_t> / temperature) over the catalogue with the gold tools
scenes      the same over gold sets, each the mean of its tools: sets that belong together are found together
votes       training queries vote for their tools, each by softmax(<x, n_i> / temperature); nobody votes for itself.
            What neighbours lend in the index is then what the encoder was tuned to make right. The voters' vectors are
            those of the last time each was asked
detection   does the query need a tool?
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from retrievers.dense.tuning.dev_recall import mine_hard_negatives
from retrievers.dense.tuning.loss import CatalogueLoss
from retrievers.masstool.encoder.tokens import Tokens, embedded, embedded_together, encode
from retrievers.masstool.encoder.vote_matrix import Ballot
from retrievers.masstool.graph import make_edges, placed, scene_members, spread
from retrievers.masstool.losses import detection, listwise
from retrievers.masstool.normalize import unit
from retrievers.masstool.settings import Beside
from retrievers.settings import DenseTraining
from retrievers.training_set import TrainingSet

LABELS = 64
"""Labelled queries in a step, half of them needing a tool."""
CHUNK = 128
"""Documents in one pass; of like length, so that little is padding."""
DENSE = 8_000_000
"""Up to so many scenes times documents, scenes are a product of matrices: a sparse sum's gradient has to sort first."""


class Aims:
    """The losses of one step."""

    def __init__(
        self, model: Any, data: TrainingSet, settings: DenseTraining, beside: Beside, share: float, device: str
    ) -> None:
        self.model, self.data, self.settings, self.beside, self.device = model, data, settings, beside, device
        self.cuda = device.startswith("cuda")
        prompts = getattr(model, "prompts", None) or {}
        asks, tells = prompts.get("query") or "", prompts.get("document") or ""
        self.queries = Tokens(model, data.train.queries, asks, device)
        self.documents = Tokens(model, data.documents, tells, device)
        self.dev = Tokens(model, data.dev.queries, asks, device)
        negatives = mine_hard_negatives(model, data, settings.candidates, self.cuda)
        most = settings.candidates
        self._catalogue = CatalogueLoss(model, data, negatives, settings.temperature, most, settings.seed)
        self._whole = len(data.candidates()) <= most
        self.edges = make_edges(data.train.gold, len(data.documents)).to(device)
        self._members, self._ballot = scene_members(self.edges), Ballot(self.edges)
        self._candidates = torch.tensor(data.candidates())
        self._columns = self._candidates.to(device)
        self._places = placed(self.edges.tools, self._columns, self.edges.count)
        self._sets = self._scene_matrix() if beside.scenes else None
        dimensions = embedded(model, self.dev.rows(torch.zeros(1, dtype=torch.long)), self.cuda).shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self.tower = nn.Sequential(nn.Linear(dimensions, dimensions), nn.ReLU(), nn.Linear(dimensions, 1))
        self.tower.to(device)
        needs = torch.tensor(data.labels.needs, dtype=torch.bool)
        self._share = share if bool(needs.any()) and not bool(needs.all()) else 0.0
        self._labels = Tokens(model, data.labels.queries, asks, device) if self._share else None
        self._sides = [needs.nonzero()[:, 0], (~needs).nonzero()[:, 0]]
        self.voters = encode(model, self.queries, self.cuda) if beside.votes else torch.zeros(0, device=device)
        fresh = self._whole and 0 < beside.refreshed < len(data.candidates())
        known = encode(model, self.documents, self.cuda) if fresh else torch.zeros(0, device=device)
        self.known = known[torch.tensor(data.candidates(), device=device)] if fresh else known
        every = [self.queries, self.documents, *([self._labels] if self._labels else [])]
        self.joined = self.cuda and not any(each.left for each in every)

    def __call__(self, places: Tensor, generator: torch.Generator) -> Tensor:
        """Of one batch: places of training queries, on the CPU."""
        here = places.to(self.device)
        rows, chosen = self._chosen(places, generator)
        parts = [self._masked(self.queries.rows(places))]
        parts += [self.documents.rows(rows[each]) for each in torch.split(chosen, CHUNK)]
        if self._labels is not None:
            parts.append(self._labels.rows(self._drawn(generator)))
        x, *others = embedded_together(self.model, parts, self.cuda, self.joined)
        labelled = others.pop() if self._labels is not None else None
        documents = self._documents(chosen, torch.cat(others))
        columns = self._columns if self._whole else rows.to(self.device)
        own = self._places[here] if self._whole else placed(self.edges.tools[here], columns, self.edges.count)
        gold = spread(own, self._ballot.shares[here], len(columns))
        loss = listwise(x @ documents.T, gold, self.settings.temperature)
        if self.beside.scenes:
            loss = torch.add(loss, self._scenes(x, here, columns, documents), alpha=self.beside.scenes)
        if self.beside.votes:
            loss = torch.add(loss, self._voting(x, here), alpha=self.beside.votes)
            self.voters = self.voters.index_copy(0, here, x.detach())  # a new one: backward needs the old
        if labelled is not None:
            needs = torch.arange(LABELS, device=self.device) < LABELS // 2
            told = detection(self.tower(labelled).squeeze(1), needs, faithful=False)
            loss = torch.add(loss, told, alpha=self._share)
        return loss

    def votes(self, x: Tensor, voters: Tensor, itself: Tensor | None = None) -> Tensor:
        """(queries, tools): how the training queries vote; shares that add up to 1. `itself`: rows that must not."""
        logits = x @ voters.T / self.settings.temperature
        if itself is not None:
            logits = logits.scatter(1, itself[:, None], -torch.inf)
        return self._ballot(torch.softmax(logits, dim=-1))

    def _masked(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        if not self.beside.masked:
            return tokens
        mask = tokens["attention_mask"]
        kept = torch.rand(mask.shape, device=mask.device) >= self.beside.masked
        kept[:, 0] = True
        return {**tokens, "attention_mask": mask * kept}

    def _chosen(self, places: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The documents in this step's softmax, and at which places among them those stand that are encoded anew, by
        length."""
        rows = self._candidates if self._whole else torch.tensor(self._catalogue.rows(places.tolist()))
        some = torch.arange(len(rows))
        if len(self.known):
            some = torch.randperm(len(rows), generator=generator)[: self.beside.refreshed]
        return rows, some[self.documents.order(rows[some])]

    def _documents(self, chosen: Tensor, fresh: Tensor) -> Tensor:
        """The documents' vectors. Where only some are encoded anew, the others are as they were the last time."""
        if not len(self.known):
            return fresh.index_select(0, chosen.argsort().to(self.device))
        vectors = self.known.index_copy(0, chosen.to(self.device), fresh)
        self.known = vectors.detach()
        return vectors

    def _drawn(self, generator: torch.Generator) -> Tensor:
        """Labelled queries, the first half needing a tool."""
        sides = self._sides
        return torch.cat([side[torch.randint(len(side), (LABELS // 2,), generator=generator)] for side in sides])

    def _scene_matrix(self) -> Tensor | None:
        """(scenes, documents): 1 where a document is in a scene. None: too large, or another in every step."""
        if not self._whole or len(self._members) * len(self._columns) > DENSE:
            return None
        places = placed(self._members, self._columns, self.edges.count)
        return spread(places, torch.ones_like(places, dtype=torch.float32), len(self._columns))

    def _scenes(self, x: Tensor, places: Tensor, columns: Tensor, documents: Tensor) -> Tensor:
        """Over all gold sets, or over the batch's own where not all documents are at hand."""
        wanted, members = self.edges.scenes[places], self._members
        if self._sets is not None:
            sums = self._sets @ documents
        else:
            if not self._whole:
                some, wanted = torch.unique(wanted, return_inverse=True)
                members = members[some]
            padded = torch.cat([documents, documents.new_zeros(1, documents.shape[1])])
            sums = functional.embedding_bag(placed(members, columns, self.edges.count), padded, mode="sum")
        return functional.cross_entropy(x @ unit(sums, 1 / self.settings.temperature).T, wanted)

    def _voting(self, x: Tensor, places: Tensor) -> Tensor:
        found = self.votes(x, self.voters, places)
        picked = found.gather(1, self.edges.tools[places].clamp(max=self.edges.count - 1))
        return -((picked + 1e-6).log() * self._ballot.shares[places]).sum() / len(places)
