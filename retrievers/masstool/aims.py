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

from retrievers.masstool.graph import make_edges, placed, scene_members, shares, spread
from retrievers.masstool.losses import detection, listwise
from retrievers.masstool.settings import Beside
from retrievers.masstool.tokens import Tokens, encode, unit
from retrievers.settings import DenseTraining
from retrievers.tuning.examples import TrainingSet
from retrievers.tuning.judging import mine
from retrievers.tuning.loss import CatalogueLoss

LABELS = 64
"""Labelled queries in a step, half of them needing a tool."""
CHUNK = 128
"""Documents in one pass; of like length, so that little is padding."""


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
        negatives = mine(model, data, settings, self.cuda)
        most = settings.candidates
        self._catalogue = CatalogueLoss(model, data, negatives, settings.temperature, most, settings.seed)
        self._whole = len(data.candidates()) <= most
        self.edges = make_edges(data.train.gold, len(data.documents)).to(device)
        self._members, self._shares = scene_members(self.edges), shares(self.edges)
        dimensions = unit(model, self.dev.rows(torch.zeros(1, dtype=torch.long)), self.cuda).shape[1]
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
        self._votes = self._ballot() if beside.votes else None

    def __call__(self, places: Tensor, generator: torch.Generator) -> Tensor:
        """Of one batch: places of training queries, on the CPU."""
        heat, here = self.settings.temperature, places.to(self.device)
        x = unit(self.model, self._masked(self.queries.rows(places)), self.cuda)
        columns, documents = self._documents(places, generator)
        own = placed(self.edges.tools[here], columns, self.edges.count)
        gold = spread(own, self._shares[here], len(columns))
        loss = listwise(x @ documents.T, gold, heat)
        if self.beside.scenes:
            loss = loss + self.beside.scenes * self._scenes(x, here, columns, documents)
        if self.beside.votes:
            loss = loss + self.beside.votes * self._voting(x, here)
            self.voters = self.voters.index_copy(0, here, x.detach())  # a new one: backward needs the old
        if self._labels is not None:
            loss = loss + self._share * self._detection(self._labels, generator)
        return loss

    def votes(self, x: Tensor, voters: Tensor, itself: Tensor | None = None) -> Tensor:
        """(queries, tools): how the training queries vote; shares that add up to 1. `itself`: rows that must not."""
        assert self._votes is not None
        logits = x @ voters.T / self.settings.temperature
        if itself is not None:
            logits = logits.scatter(1, itself[:, None], -torch.inf)
        voted: Tensor = torch.sparse.mm(self._votes, torch.softmax(logits, dim=-1).T).T
        return voted

    def _masked(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        if not self.beside.masked:
            return tokens
        mask = tokens["attention_mask"]
        kept = torch.rand(mask.shape, device=mask.device) >= self.beside.masked
        kept[:, 0] = True
        return {**tokens, "attention_mask": mask * kept}

    def _documents(self, places: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The documents in this step's softmax, and their vectors. Where only some are encoded anew, the others are as
        they were the last time."""
        rows = torch.tensor(self._catalogue.rows(places.tolist()))
        if not len(self.known):
            return rows.to(self.device), self._encoded(rows)
        chosen = torch.randperm(len(rows), generator=generator)[: self.beside.refreshed]
        vectors = self.known.index_copy(0, chosen.to(self.device), self._encoded(rows[chosen]))
        self.known = vectors.detach()
        return rows.to(self.device), vectors

    def _encoded(self, rows: Tensor) -> Tensor:
        place = torch.empty(len(self.documents), dtype=torch.long)
        place[rows] = torch.arange(len(rows))
        parts = self.documents.batches(rows, CHUNK)
        vectors = torch.cat([unit(self.model, self.documents.rows(part), self.cuda) for part in parts])
        return vectors[place[torch.cat(parts)].argsort().to(self.device)]

    def _scenes(self, x: Tensor, places: Tensor, columns: Tensor, documents: Tensor) -> Tensor:
        """Over all gold sets, or over the batch's own where not all documents are at hand."""
        wanted, members = self.edges.scenes[places], self._members
        if not self._whole:
            some, wanted = torch.unique(wanted, return_inverse=True)
            members = members[some]
        column = torch.full((self.edges.count + 1,), len(columns), dtype=torch.long, device=x.device)
        column[columns] = torch.arange(len(columns), device=x.device)
        padded = torch.cat([documents, documents.new_zeros(1, documents.shape[1])])
        scenes = functional.normalize(functional.embedding_bag(column[members], padded, mode="sum"), dim=-1)
        return functional.cross_entropy(x @ scenes.T / self.settings.temperature, wanted)

    def _voting(self, x: Tensor, places: Tensor) -> Tensor:
        found = self.votes(x, self.voters, places)
        tools, real = self.edges.tools[places], self.edges.real[places]
        picked = found.gather(1, tools.clamp(max=self.edges.count - 1))
        return -((picked + 1e-6).log() * real / real.sum(1, keepdim=True)).sum(1).mean()

    def _ballot(self) -> Tensor:
        """(tools, training queries), sparse: a query's vote, shared by its tools."""
        rows, places = self.edges.real.nonzero(as_tuple=True)
        shares = 1.0 / self.edges.real.sum(1)[rows].float()
        where = torch.stack([self.edges.tools[rows, places], rows])
        size = (self.edges.count, len(self.edges.tools))
        return torch.sparse_coo_tensor(where, shares, size, check_invariants=False).coalesce()

    def _detection(self, labels: Tokens, generator: torch.Generator) -> Tensor:
        drawn = [side[torch.randint(len(side), (LABELS // 2,), generator=generator)] for side in self._sides]
        x = unit(self.model, labels.rows(torch.cat(drawn)), self.cuda)
        needs = torch.arange(LABELS, device=self.device) < LABELS // 2
        return detection(self.tower(x)[:, 0], needs, faithful=False)
