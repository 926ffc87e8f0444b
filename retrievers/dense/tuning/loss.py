"""Listwise softmax over the catalogue, with every gold tool of a query as a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from retrievers.training_set import TrainingSet

CHUNK = 128  # documents encoded in one pass; sorted by length, so that little is padding


class CatalogueLoss(nn.Module):
    """Cross entropy between softmax(query . document / temperature) and the gold tools, each with an equal share.

    The softmax is over all tools that some training query needs, up to `max_candidates`. Above that it is over the
    batch's gold tools, the hard negatives of its queries and a random fill. Labels are indices of training queries;
    their gold tools are looked up here, so that no gold tool of a query is its negative.
    """

    def __init__(
        self,
        model: Any,
        data: TrainingSet,
        negatives: Sequence[Sequence[int]],
        temperature: float,
        max_candidates: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.model = model
        self._data, self._negatives = data, negatives
        self._temperature, self._max_candidates, self._seed = temperature, max_candidates, seed
        self._candidates = data.candidates()
        self._prompt = (getattr(model, "prompts", None) or {}).get("document") or ""
        self._tokens: dict[tuple[int, ...], dict[str, Tensor]] = {}

    def forward(self, features: list[dict[str, Tensor]], labels: Tensor) -> Tensor:
        indices = labels.tolist()
        rows = self.rows(indices)
        queries = functional.normalize(self.model(features[0])["sentence_embedding"].float(), dim=-1)
        documents = self._encode(rows, queries.device)
        logits = queries @ documents.T / self._temperature  # (queries, documents)
        column = {row: i for i, row in enumerate(rows)}
        shares = np.zeros(logits.shape, np.float32)
        for i, index in enumerate(indices):
            gold = self._data.train.gold[index]
            shares[i, [column[row] for row in gold]] = 1.0 / len(gold)
        targets = torch.from_numpy(shares).to(logits.device)  # in one piece: a GPU waits for every single one
        return -(targets * functional.log_softmax(logits, dim=-1)).sum(dim=-1).mean()

    def rows(self, indices: Sequence[int]) -> list[int]:
        """Documents in the softmax of these training queries."""
        if len(self._candidates) <= self._max_candidates:
            return self._candidates
        chosen = {row for index in indices for row in self._data.train.gold[index]}
        # The nearest wrong document of every query first, then the second nearest, up to the limit.
        negatives = [self._negatives[index] for index in indices]
        depth = max(map(len, negatives), default=0)
        for row in (ranking[rank] for rank in range(depth) for ranking in negatives if rank < len(ranking)):
            if len(chosen) >= self._max_candidates:
                break
            chosen.add(row)
        # Seeded by the batch itself, so that a resumed run draws what an uninterrupted one draws.
        rng = np.random.default_rng([self._seed, *indices[:16]])
        missing = self._max_candidates - len(chosen)
        if missing > 0:
            chosen.update(int(row) for row in rng.choice(self._candidates, size=missing, replace=False))
        return sorted(chosen)

    def _encode(self, rows: Sequence[int], device: torch.device) -> Tensor:
        """Unit vectors (rows, dimensions) of documents, with gradient."""
        order = sorted(range(len(rows)), key=lambda i: len(self._data.documents[rows[i]]))
        parts = []
        for start in range(0, len(order), CHUNK):
            chunk = tuple(rows[i] for i in order[start : start + CHUNK])
            parts.append(self.model(dict(self._tokenize(chunk, device)))["sentence_embedding"].float())
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        return functional.normalize(torch.cat(parts), dim=-1)[back.to(device)]

    def _tokenize(self, rows: tuple[int, ...], device: torch.device) -> dict[str, Tensor]:
        """Tokens of documents, cached where every step uses the whole catalogue."""
        if rows in self._tokens:
            return self._tokens[rows]
        features = self.model.preprocess([self._prompt + self._data.documents[row] for row in rows])
        tokens = {name: value.to(device) for name, value in features.items() if torch.is_tensor(value)}
        if len(self._candidates) <= self._max_candidates:
            self._tokens[rows] = tokens
        return tokens
