"""Listwise softmax over the catalogue, with every gold tool of a query as a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from retrievers.training_set import TrainingSet

CHUNK = 128
"""Documents encoded in one pass; sorted by length, so that little is padding."""


class CatalogueLoss(nn.Module):
    """Cross entropy between softmax(query . document / temperature) and the gold tools, each with an equal share.

    Where they fit (`most` documents), all tools that some training query needs stand in the softmax. Where not, the
    batch's own gold tools, the hard negatives mined for its queries and a random fill do. Labels are places in the
    training queries: which documents are right is looked up here, so that no gold tool of a query is its negative.
    """

    def __init__(
        self,
        model: Any,
        data: TrainingSet,
        negatives: Sequence[Sequence[int]],
        temperature: float,
        most: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.model = model
        self._data, self._negatives = data, negatives
        self._temperature, self._most, self._seed = temperature, most, seed
        self._candidates = data.candidates()
        self._prompt = (getattr(model, "prompts", None) or {}).get("document") or ""
        self._tokens: dict[tuple[int, ...], dict[str, Tensor]] = {}

    def forward(self, features: list[dict[str, Tensor]], labels: Tensor) -> Tensor:
        places = labels.tolist()
        rows = self.rows(places)
        queries = functional.normalize(self.model(features[0])["sentence_embedding"].float(), dim=-1)
        documents = self._encode(rows, queries.device)
        logits = queries @ documents.T / self._temperature  # (queries, documents)
        column = {row: i for i, row in enumerate(rows)}
        shares = np.zeros(logits.shape, np.float32)
        for i, place in enumerate(places):
            gold = self._data.train.gold[place]
            shares[i, [column[row] for row in gold]] = 1.0 / len(gold)
        targets = torch.from_numpy(shares).to(logits.device)  # in one piece: a GPU waits for every single one
        return -(targets * functional.log_softmax(logits, dim=-1)).sum(dim=-1).mean()

    def rows(self, places: Sequence[int]) -> list[int]:
        """The documents that stand in this step's softmax."""
        if len(self._candidates) <= self._most:
            return self._candidates
        chosen = {row for place in places for row in self._data.train.gold[place]}
        # The nearest wrong answers of all queries first, then the second nearest, as far as there is room.
        depth = max((len(self._negatives[place]) for place in places), default=0)
        hard = [self._negatives[place][d] for d in range(depth) for place in places if d < len(self._negatives[place])]
        for row in hard:
            if len(chosen) >= self._most:
                break
            chosen.add(row)
        # Seeded by the batch itself, so that a resumed run draws what an uninterrupted one draws.
        rng = np.random.default_rng([self._seed, *places[:16]])
        missing = self._most - len(chosen)
        if missing > 0:
            chosen.update(int(row) for row in rng.choice(self._candidates, size=missing, replace=False))
        return sorted(chosen)

    def _encode(self, rows: Sequence[int], device: torch.device) -> Tensor:
        """Unit vectors (rows, dimensions) of documents, with gradient."""
        order = sorted(range(len(rows)), key=lambda i: len(self._data.documents[rows[i]]))
        parts = []
        for start in range(0, len(order), CHUNK):
            chunk = tuple(rows[i] for i in order[start : start + CHUNK])
            parts.append(self.model(dict(self._tokenized(chunk, device)))["sentence_embedding"].float())
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        return functional.normalize(torch.cat(parts), dim=-1)[back.to(device)]

    def _tokenized(self, rows: tuple[int, ...], device: torch.device) -> dict[str, Tensor]:
        """Tokens of documents; where every step looks at the whole catalogue they are made once."""
        if rows in self._tokens:
            return self._tokens[rows]
        features = self.model.preprocess([self._prompt + self._data.documents[row] for row in rows])
        tokens = {name: value.to(device) for name, value in features.items() if torch.is_tensor(value)}
        if len(self._candidates) <= self._most:
            self._tokens[rows] = tokens
        return tokens
