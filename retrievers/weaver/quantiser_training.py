"""Training of the quantiser: an autoencoder first, then codes initialised by k-means and trained with it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from retrievers.errors import BadInput
from retrievers.progress import Progress
from retrievers.weaver.co_usage import CoUsage, CoUsageGraph
from retrievers.weaver.quantiser import Quantiser, codebook_loss, collaboration_features, straight_through
from retrievers.weaver.settings import QuantiserSettings

WARMUP = 0.2
"""Share of the steps that train the autoencoder alone, so that k-means sees meaningful points."""
KMEANS_POINTS = 16_384
KMEANS_ITERATIONS = 25
RESET_EVERY = 50
"""Steps between resets of unused codes."""
RESETS_END = 0.8
"""Share of the steps after which no code is reset."""


def train_quantiser(
    vectors: np.ndarray, usage: CoUsage, settings: QuantiserSettings, device: str, show_progress: bool = False
) -> Quantiser:
    """Train a quantiser of these tools; on the same device the same for the same seed."""
    return _QuantiserTrainer(vectors, usage, settings, device).train(show_progress)


class _QuantiserTrainer:
    def __init__(self, vectors: np.ndarray, usage: CoUsage, settings: QuantiserSettings, device: str) -> None:
        self._settings, self._device = settings, device
        self._vectors = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)).to(device)
        self._graph = CoUsageGraph(usage, len(vectors), device)
        self._collaborates = settings.collaboration > 0 and len(usage.pairs) > 0
        self._one_batch = len(vectors) <= settings.batch_size
        self._generator = torch.Generator().manual_seed(settings.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self._model = Quantiser(vectors.shape[1], settings).to(device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=settings.learning_rate)
        self._used = torch.zeros(settings.levels, settings.codebook_size, device=device)

    def train(self, show_progress: bool) -> Quantiser:
        steps = self._settings.steps
        start = int(WARMUP * steps)
        bar = Progress("training the quantiser", steps, "steps", show_progress)
        for step in range(steps):
            if step == start:
                self._initialise_codes()
            share = 0.5 * (1 + math.cos(math.pi * step / steps))
            for group in self._optimizer.param_groups:
                group["lr"] = self._settings.learning_rate * max(share, 0.02)
            loss = self._loss(step >= start)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()
            if step > start and (step - start) % RESET_EVERY == 0 and step < RESETS_END * steps:
                self._reset_unused_codes()
            bar.add()
        bar.close()
        if not math.isfinite(float(loss.detach())):
            raise BadInput(f"the loss of the quantiser is {float(loss.detach())}; lower quantiser.learning_rate")
        return self._model.eval()

    def _loss(self, quantise: bool) -> Tensor:
        """Reconstruction, codebook and collaboration loss of one batch."""
        rows = self._rows()
        partners, weights = rows, rows
        if self._collaborates and not self._one_batch:  # a sampled partner each: unbiased for the whole graph
            partners, weights = self._graph.sample_partners(rows, self._generator)
        batch = torch.cat([rows, partners]) if partners is not rows else rows
        points = self._model.points(self._vectors[batch])
        loss: Tensor = points.new_zeros(())
        decoded = features = points
        if quantise:
            quantised = self._model.quantise(points)
            decoded, features = straight_through(points, quantised), collaboration_features(points, quantised)
            loss = loss + codebook_loss(quantised)
            for level, codes in enumerate(quantised.codes.T):
                self._used[level] += torch.bincount(codes, minlength=self._settings.codebook_size)
        reconstruction: Tensor = (self._model.decoder(decoded) - self._vectors[batch]).square().sum(dim=-1).mean()
        loss = loss + reconstruction
        if not self._collaborates:
            return loss
        if self._one_batch:
            return loss + self._settings.collaboration * self._graph.laplacian_loss(features)
        distances = (features[: len(rows)] - features[len(rows) :]).square().sum(dim=-1)
        return loss + self._settings.collaboration * (weights * distances).mean()

    def _rows(self) -> Tensor:
        count = len(self._vectors)
        if self._one_batch:
            return torch.arange(count, device=self._device)
        return torch.randperm(count, generator=self._generator)[: self._settings.batch_size].to(self._device)

    @torch.no_grad()
    def _initialise_codes(self) -> None:
        """Set each level's codes to the k-means centres of its residuals."""
        left = self._points(KMEANS_POINTS)
        for book in self._model.books:
            book.copy_(kmeans(left, len(book), self._generator))
            left = left - book[torch.cdist(left, book).argmin(dim=1)]
        self._optimizer.state.pop(self._model.books, None)

    @torch.no_grad()
    def _reset_unused_codes(self) -> None:
        """Move codes without tools to residuals that are badly approximated."""
        points = self._points(self._settings.batch_size)
        quantised = self._model.quantise(points)
        for level, book in enumerate(self._model.books):
            unused = torch.nonzero(self._used[level] == 0).flatten()
            if not len(unused):
                continue
            errors = (quantised.residuals[:, level] - quantised.chosen[:, level]).square().sum(dim=-1)
            chosen = torch.multinomial((errors + 1e-9).cpu(), min(len(unused), len(points)), generator=self._generator)
            unused = unused[: len(chosen)]
            noise = 1e-3 * torch.randn(len(unused), book.shape[1], generator=self._generator).to(book)
            book[unused] = quantised.residuals[chosen.to(unused.device), level] + noise
            for moment in ("exp_avg", "exp_avg_sq"):
                if moment in (state := self._optimizer.state[self._model.books]):
                    state[moment][level, unused] = 0.0
        self._used.zero_()

    def _points(self, count: int) -> Tensor:
        rows = torch.randperm(len(self._vectors), generator=self._generator)[:count]
        return self._model.points(self._vectors[rows.to(self._device)])


def kmeans(vectors: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(count, dimensions): centres by k-means++; with fewer vectors than centres, some centres are near copies."""
    centres = _initial_centres(vectors, count, generator)
    for _ in range(KMEANS_ITERATIONS):
        nearest = torch.cdist(vectors, centres).argmin(dim=1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, vectors)
        counts = torch.bincount(nearest, minlength=count).unsqueeze(1)
        centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
    return centres


def _initial_centres(vectors: Tensor, count: int, generator: torch.Generator) -> Tensor:
    first = vectors[int(torch.randint(len(vectors), (1,), generator=generator))]
    chosen, distances = [first], (vectors - first).square().sum(dim=1)
    scale = float(vectors.std()) if len(vectors) > 1 else 1.0
    while len(chosen) < count:
        if float(distances.max()) <= 1e-12:  # every vector is a centre: the rest are near copies
            base = vectors[int(torch.randint(len(vectors), (1,), generator=generator))]
            noise = torch.randn(vectors.shape[1], generator=generator).to(vectors)
            chosen.append(base + 0.1 * max(scale, 1e-3) * noise)
            continue
        edges = distances.double().cumsum(0)
        target = float(torch.rand(1, generator=generator, dtype=torch.float64)) * float(edges[-1])
        index = int(torch.searchsorted(edges, target, right=True).clamp(max=len(vectors) - 1))
        chosen.append(vectors[index])
        distances = torch.minimum(distances, (vectors - vectors[index]).square().sum(dim=1))
    return torch.stack(chosen)
