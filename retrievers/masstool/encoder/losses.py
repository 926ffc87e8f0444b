"""Losses of joint encoder tuning.

tools       cross entropy of softmax(<x, d_t> / temperature) over the candidate documents with the gold tools
scenes      the same over gold sets, each the mean of its tools
votes       the other training queries vote for their tools, each by softmax(<x, n_i> / temperature), so that the
            encoder is tuned for the votes of neighbours in the index; voters keep the vectors of their last step
detection   binary cross entropy of needing a tool
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from retrievers.dense.tuning.dev_recall import mine_hard_negatives
from retrievers.dense.tuning.loss import CatalogueLoss
from retrievers.masstool import losses
from retrievers.masstool.encoder.tokens import TokenTable, embed, embed_parts, encode
from retrievers.masstool.encoder.vote_matrix import VoteMatrix
from retrievers.masstool.graph import Edges, column_of, gold_shares, make_edges, scatter_columns, scene_members
from retrievers.masstool.normalize import normalize
from retrievers.masstool.settings import EncoderTuning
from retrievers.training_set import Labels, TrainingSet

LABELS = 64
"""Labelled queries per step, half of them needing a tool."""
CHUNK = 128
"""Documents per pass, of similar length, so that there is little padding."""
MAX_DENSE = 8_000_000
"""Scenes times documents up to which scenes are a dense product: the gradient of a sparse sum has to sort first."""


class CandidateDocuments:
    """Documents in the softmax of a step: all that training queries need, or else a sample of them."""

    def __init__(
        self, model: Any, data: TrainingSet, tokens: TokenTable, tuning: EncoderTuning, seed: int, device: str
    ) -> None:
        cuda, per_step = device.startswith("cuda"), tuning.auxiliary.documents_per_step
        self._all, self._tokens, self._per_step, self._device = (
            torch.tensor(data.candidates()),
            tokens,
            per_step,
            device,
        )
        self.is_whole = len(self._all) <= tuning.candidates
        self.columns = self._all.to(device)
        """Rows of all candidates, on the device."""
        negatives = mine_hard_negatives(model, data, tuning.candidates, cuda)
        self._sampler = CatalogueLoss(model, data, negatives, tuning.temperature, tuning.candidates, seed)
        reuses = self.is_whole and 0 < per_step < len(self._all)
        self.cached = encode(model, tokens, cuda)[self.columns] if reuses else torch.zeros(0, device=device)
        """Last vectors of the candidates, where a step encodes only some of them anew."""

    def choose(self, batch: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Candidate rows of a step, and the positions among them to be encoded, sorted by length."""
        rows = self._all if self.is_whole else torch.tensor(self._sampler.rows(batch.tolist()))
        positions = torch.arange(len(rows))
        if len(self.cached):
            positions = torch.randperm(len(rows), generator=generator)[: self._per_step]
        return rows, positions[self._tokens.order_by_length(rows[positions])]

    def vectors(self, positions: Tensor, encoded: Tensor) -> Tensor:
        """Vectors of all candidates of a step; those not encoded in it keep their last vectors."""
        if not len(self.cached):
            return encoded.index_select(0, positions.argsort().to(self._device))
        vectors = self.cached.index_copy(0, positions.to(self._device), encoded)
        self.cached = vectors.detach()
        return vectors


class SceneLoss:
    """Cross entropy over gold sets: all of them, or those of the batch where not all documents are candidates."""

    def __init__(self, edges: Edges, candidates: CandidateDocuments, temperature: float) -> None:
        self._edges, self._members, self._temperature = edges, scene_members(edges), temperature
        self._is_whole = candidates.is_whole
        self._matrix: Tensor | None = None
        if candidates.is_whole and len(self._members) * len(candidates.columns) <= MAX_DENSE:
            columns = column_of(self._members, candidates.columns, edges.num_tools)
            ones = torch.ones_like(columns, dtype=torch.float32)
            self._matrix = scatter_columns(columns, ones, len(candidates.columns))

    def __call__(self, x: Tensor, batch: Tensor, columns: Tensor, documents: Tensor) -> Tensor:
        gold, members = self._edges.scenes[batch], self._members
        if self._matrix is not None:
            sums = self._matrix @ documents
        else:
            if not self._is_whole:
                scenes, gold = torch.unique(gold, return_inverse=True)
                members = members[scenes]
            padded = torch.cat([documents, documents.new_zeros(1, documents.shape[1])])
            sums = functional.embedding_bag(column_of(members, columns, self._edges.num_tools), padded, mode="sum")
        return functional.cross_entropy(x @ normalize(sums, 1 / self._temperature).T, gold)


class VoteLoss:
    """Negative log of the votes that the other training queries give to the gold tools."""

    def __init__(self, edges: Edges, temperature: float, voters: Tensor) -> None:
        self._edges, self._temperature, self._matrix = edges, temperature, VoteMatrix(edges)
        self.voters = voters
        """(training queries, dimensions) vectors of their last step"""

    def votes(self, x: Tensor, voters: Tensor, exclude: Tensor | None = None) -> Tensor:
        """(queries, tools) votes that sum to 1; `exclude`: the row of each query that must not vote."""
        logits = x @ voters.T / self._temperature
        if exclude is not None:
            logits = logits.scatter(1, exclude[:, None], -torch.inf)
        return self._matrix(torch.softmax(logits, dim=-1))

    def __call__(self, x: Tensor, batch: Tensor) -> Tensor:
        votes = self.votes(x, self.voters, batch)
        gold = votes.gather(1, self._edges.tools[batch].clamp(max=self._edges.num_tools - 1))
        loss = -((gold + 1e-6).log() * self._matrix.shares[batch]).sum() / len(batch)
        self.voters = self.voters.index_copy(0, batch, x.detach())  # a new tensor: backward needs the old one
        return loss


class DetectionLoss:
    """A tower on the query's vector, and labelled queries drawn for it."""

    def __init__(self, model: Any, labels: Labels, prompt: str, dimensions: int, seed: int, device: str) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.tower = nn.Sequential(nn.Linear(dimensions, dimensions), nn.ReLU(), nn.Linear(dimensions, 1))
        self.tower.to(device)
        needs = torch.tensor(labels.needs, dtype=torch.bool)
        self._sides = [needs.nonzero()[:, 0], (~needs).nonzero()[:, 0]]
        self.tokens = TokenTable(model, labels.queries, prompt, device)
        self._needs = torch.arange(LABELS, device=device) < LABELS // 2

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Tokens of labelled queries, the first half needing a tool."""
        rows = [side[torch.randint(len(side), (LABELS // 2,), generator=generator)] for side in self._sides]
        return self.tokens.rows(torch.cat(rows))

    def __call__(self, vectors: Tensor) -> Tensor:
        return losses.detection(self.tower(vectors).squeeze(1), self._needs)


class JointLoss:
    """Weighted sum of all losses of one step."""

    def __init__(
        self, model: Any, data: TrainingSet, tuning: EncoderTuning, detection_weight: float, seed: int, device: str
    ) -> None:
        self.model, self._tuning, self._device = model, tuning, device
        self._cuda, auxiliary = device.startswith("cuda"), tuning.auxiliary
        prompts = getattr(model, "prompts", None) or {}
        query_prompt, document_prompt = prompts.get("query") or "", prompts.get("document") or ""
        self.queries = TokenTable(model, data.train.queries, query_prompt, device)
        self.documents = TokenTable(model, data.documents, document_prompt, device)
        self.dev = TokenTable(model, data.dev.queries, query_prompt, device)
        self._edges = make_edges(data.train.gold, len(data.documents)).to(device)
        self._shares = gold_shares(self._edges)
        self.candidates = CandidateDocuments(model, data, self.documents, tuning, seed, device)
        self._gold_columns = column_of(self._edges.tools, self.candidates.columns, self._edges.num_tools)
        self.scenes: SceneLoss | None = None
        if auxiliary.scene_weight:
            self.scenes = SceneLoss(self._edges, self.candidates, tuning.temperature)
        self.votes: VoteLoss | None = None
        if auxiliary.vote_weight:
            self.votes = VoteLoss(self._edges, tuning.temperature, encode(model, self.queries, self._cuda))
        self._detection_weight = detection_weight
        self.detection: DetectionLoss | None = None
        if detection_weight and len(set(data.labels.needs)) == 2:
            dimensions = embed(model, self.dev.rows(torch.zeros(1, dtype=torch.long)), self._cuda).shape[1]
            self.detection = DetectionLoss(model, data.labels, query_prompt, dimensions, seed, device)
        tables = [self.queries, self.documents, *([self.detection.tokens] if self.detection else [])]
        self._join = self._cuda and not any(table.left_padded for table in tables)

    def parameters(self) -> list[nn.Parameter]:
        """Parameters beside the encoder's."""
        return list(self.detection.tower.parameters()) if self.detection else []

    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        """Loss of one batch: rows of training queries, on the CPU."""
        here, auxiliary, temperature = batch.to(self._device), self._tuning.auxiliary, self._tuning.temperature
        rows, positions = self.candidates.choose(batch, generator)
        parts = [self.mask_tokens(self.queries.rows(batch))]
        parts += [self.documents.rows(rows[chunk]) for chunk in torch.split(positions, CHUNK)]
        if self.detection:
            parts.append(self.detection.draw(generator))
        x, *encoded = embed_parts(self.model, parts, self._cuda, self._join)
        labelled = encoded.pop() if self.detection else None
        documents = self.candidates.vectors(positions, torch.cat(encoded))
        if self.candidates.is_whole:
            columns, gold_columns = self.candidates.columns, self._gold_columns[here]
        else:
            columns = rows.to(self._device)
            gold_columns = column_of(self._edges.tools[here], columns, self._edges.num_tools)
        gold = scatter_columns(gold_columns, self._shares[here], len(columns))
        loss = losses.listwise(x @ documents.T, gold, temperature)
        if self.scenes:
            loss = torch.add(loss, self.scenes(x, here, columns, documents), alpha=auxiliary.scene_weight)
        if self.votes:
            loss = torch.add(loss, self.votes(x, here), alpha=auxiliary.vote_weight)
        if self.detection and labelled is not None:
            loss = torch.add(loss, self.detection(labelled), alpha=self._detection_weight)
        return loss

    def mask_tokens(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
        """Hide a share of the tokens, drawn anew; the first token stays."""
        share = self._tuning.auxiliary.token_dropout
        if not share:
            return tokens
        mask = tokens["attention_mask"]
        kept = torch.rand(mask.shape, device=mask.device) >= share
        kept[:, 0] = True
        return {**tokens, "attention_mask": mask * kept}

    def state(self) -> dict[str, Tensor]:
        """Tensors of a checkpoint beside the encoder's."""
        tower = self.detection.tower.state_dict() if self.detection else {}
        state = {f"tower/{name}": value for name, value in tower.items()} | {"cached": self.candidates.cached}
        return state | ({"voters": self.votes.voters} if self.votes else {})

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.candidates.cached = state["cached"].to(self._device)
        if self.votes:
            self.votes.voters = state["voters"].to(self._device)
        if self.detection:
            tower = {name.removeprefix("tower/"): value for name, value in state.items() if name.startswith("tower/")}
            self.detection.tower.load_state_dict(tower)
