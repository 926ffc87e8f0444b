"""Training the quantiser: an autoencoder first, then codes placed by k-means and learned together with it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from retrievers.errors import BadInput
from retrievers.weaver.co_usage import Graph, Usage
from retrievers.weaver.kmeans import kmeans
from retrievers.weaver.quantiser import Quantiser, code_loss, drawn, straight
from retrievers.weaver.settings import WeaveSettings

PLACED_BY = 16_384
"""Tools that k-means looks at, at the most."""
REVIVED = 50
"""Steps between two looks at the codes that nobody uses."""
SETTLED = 0.8
"""The share of steps after which no code is moved any more."""


def learn(vectors: np.ndarray, usage: Usage, settings: WeaveSettings, device: str, progress: bool = False) -> Quantiser:
    """A quantiser of these tools; the same on the same device for the same seed."""
    return _Lessons(vectors, usage, settings, device).run(progress)


class _Lessons:
    def __init__(self, vectors: np.ndarray, usage: Usage, settings: WeaveSettings, device: str) -> None:
        self._settings, self._device = settings, device
        self._vectors = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)).to(device)
        self._graph = Graph(usage, len(vectors), device)
        self._draws = settings.collaboration > 0 and len(usage.pairs) > 0
        self._whole = len(vectors) <= settings.batch_size
        self._chance = torch.Generator().manual_seed(settings.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self._model = Quantiser(vectors.shape[1], settings).to(device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=settings.learning_rate)
        self._used = torch.zeros(settings.levels, settings.codes, device=device)

    def run(self, progress: bool) -> Quantiser:
        settings = self._settings
        placed = int(settings.warmup * settings.steps)
        for step in tqdm(range(settings.steps), desc="weaving") if progress else range(settings.steps):
            if step == placed:
                self._place()
            share = 0.5 * (1 + math.cos(math.pi * step / settings.steps))
            for group in self._optimizer.param_groups:
                group["lr"] = settings.learning_rate * max(share, 0.02)
            loss = self._loss(step >= placed)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()
            if step > placed and (step - placed) % REVIVED == 0 and step < SETTLED * settings.steps:
                self._revive()
        if not math.isfinite(float(loss.detach())):
            raise BadInput("the codes did not settle: their loss is no number; lower weave.learning_rate")
        return self._model.eval()

    def _loss(self, quantising: bool) -> Tensor:
        """Of one batch: what the vectors lose, what the codes miss, and how far apart lies what is used together."""
        rows = self._rows()
        partners, weights = rows, rows
        if self._draws and not self._whole:  # each with one it is used with: the whole graph's loss, on average
            partners, weights = self._graph.partners(rows, self._chance)
        every = torch.cat([rows, partners]) if partners is not rows else rows
        points = self._model.points(self._vectors[every])
        loss: Tensor = points.new_zeros(())
        read = held = points
        if quantising:
            quantised = self._model.quantise(points)
            read, held = straight(points, quantised), drawn(points, quantised)
            loss = loss + code_loss(quantised, self._settings.commitment)
            for level, codes in enumerate(quantised.codes.T):
                self._used[level] += torch.bincount(codes, minlength=self._settings.codes)
        lost: Tensor = (self._model.decoder(read) - self._vectors[every]).square().sum(dim=-1).mean()
        loss = loss + lost
        if not self._draws:
            return loss
        if self._whole:
            return loss + self._settings.collaboration * self._graph.whole(held)
        apart = (held[: len(rows)] - held[len(rows) :]).square().sum(dim=-1)
        return loss + self._settings.collaboration * (weights * apart).mean()

    def _rows(self) -> Tensor:
        count = len(self._vectors)
        if self._whole:
            return torch.arange(count, device=self._device)
        return torch.randperm(count, generator=self._chance)[: self._settings.batch_size].to(self._device)

    @torch.no_grad()
    def _place(self) -> None:
        """Codes begin in the midst of what they are to stand for, level by level."""
        left = self._points(PLACED_BY)
        for book in self._model.books:
            book.copy_(kmeans(left, len(book), self._chance))
            left = left - book[torch.cdist(left, book).argmin(dim=1)]
        self._optimizer.state.pop(self._model.books, None)

    @torch.no_grad()
    def _revive(self) -> None:
        """A code that nobody has used of late goes where a tool is badly served."""
        points = self._points(self._settings.batch_size)
        quantised = self._model.quantise(points)
        for level, book in enumerate(self._model.books):
            dead = torch.nonzero(self._used[level] == 0).flatten()
            if not len(dead):
                continue
            missed = (quantised.residuals[:, level] - quantised.chosen[:, level]).square().sum(dim=-1)
            chosen = torch.multinomial((missed + 1e-9).cpu(), min(len(dead), len(points)), generator=self._chance)
            dead = dead[: len(chosen)]
            noise = 1e-3 * torch.randn(len(dead), book.shape[1], generator=self._chance).to(book)
            book[dead] = quantised.residuals[chosen.to(dead.device), level] + noise
            self._still(level, dead)
        self._used.zero_()

    def _still(self, level: int, dead: Tensor) -> None:
        """What the optimizer remembers of a code that has moved is of another place."""
        for moment in ("exp_avg", "exp_avg_sq"):
            if moment in (state := self._optimizer.state[self._model.books]):
                state[moment][level, dead] = 0.0

    def _points(self, most: int) -> Tensor:
        rows = torch.randperm(len(self._vectors), generator=self._chance)[:most]
        return self._model.points(self._vectors[rows.to(self._device)])
