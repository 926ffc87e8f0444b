"""The residual-quantised autoencoder: vector -> point on the unit sphere -> sum of codes -> vector.

Points have length 1, so that co-used tools cannot be drawn together by shrinking everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from retrievers.weaver.settings import QuantiserSettings
from retrievers.weaver.sinkhorn import balancing_prices

HIDDEN = (256, 128)
"""Widths of the layers between the vectors and the quantised space; the decoder mirrors them."""
COMMITMENT = 0.25
"""Weight of the loss that keeps the encoder near the codes it chose."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """Points and their codes."""

    codes: Tensor
    """(points, levels)"""
    residuals: Tensor
    """(points, levels, width): the input of each level."""
    chosen: Tensor
    """(points, levels, width): the code vectors."""

    @property
    def total(self) -> Tensor:
        """(points, width): the sum of the codes."""
        return self.chosen.sum(dim=1)


class Quantiser(nn.Module):
    """Encoder, codebooks, decoder."""

    def __init__(self, dimensions: int, settings: QuantiserSettings) -> None:
        super().__init__()
        sizes = [dimensions, *HIDDEN, settings.width]
        self.encoder, self.decoder = _layers(sizes), _layers(sizes[::-1])
        self.books = nn.Parameter(torch.zeros(settings.levels, settings.codebook_size, settings.width))
        self._settings = settings

    def points(self, vectors: Tensor) -> Tensor:
        """(vectors, width), of length 1."""
        return functional.normalize(self.encoder(vectors), dim=-1)

    def quantise(self, points: Tensor) -> Quantised:
        """Take the code nearest to the residual at each level, balanced at the last one where `uniform` is set."""
        left, codes, residuals, chosen = points, [], [], []
        for level, book in enumerate(self.books):
            with torch.no_grad():
                costs = torch.cdist(left, book).square()
                if self._settings.uniform and level == len(self.books) - 1:
                    costs = costs + balancing_prices(costs)
                nearest = costs.argmin(dim=1)
            codes.append(nearest)
            residuals.append(left)
            chosen.append(book[nearest])
            left = left - book[nearest].detach()
        return Quantised(torch.stack(codes, 1), torch.stack(residuals, 1), torch.stack(chosen, 1))


def straight_through(points: Tensor, quantised: Quantised) -> Tensor:
    """The sum of the codes, with the gradient passed to the encoder as if nothing had been quantised."""
    return points + (quantised.total - points).detach()


def collaboration_features(points: Tensor, quantised: Quantised) -> Tensor:
    """(points, (1 + levels) x width): the point, its first code, the sum of its first two, and so on.

    A squared distance of two is the mean over these: tools that share a branch must agree from the first code on, and
    the last one, which balancing may have separated, counts least. The gradient goes to the encoder and not to the
    codes, because the cheapest way to bring two codes together would be to make all codes equal.
    """
    sums = quantised.chosen.detach().cumsum(dim=1)
    prefix_sums = points.unsqueeze(1) + (sums - points.unsqueeze(1)).detach()
    features = torch.cat([points.unsqueeze(1), prefix_sums], dim=1)
    scale: float = features.shape[1] ** -0.5
    return features.flatten(1) * scale


def codebook_loss(quantised: Quantised) -> Tensor:
    """Move codes to their residuals, and keep the encoder near the codes it chose."""
    pull = (quantised.residuals.detach() - quantised.chosen).square().sum(dim=-1)
    commit = (quantised.residuals - quantised.chosen.detach()).square().sum(dim=-1)
    return (pull + COMMITMENT * commit).sum(dim=1).mean()


def _layers(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(before, after)] + ([nn.ReLU()] if index < len(sizes) - 2 else [])
    return nn.Sequential(*layers)
