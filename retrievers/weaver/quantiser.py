"""The residual-quantised autoencoder: a vector, a point on a sphere, a sum of codes, and the vector again.

Points have length 1, so that tools which are used together cannot be drawn together by shrinking everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from retrievers.weaver.settings import WeaveSettings
from retrievers.weaver.sinkhorn import prices


@dataclass(frozen=True, slots=True)
class Quantised:
    """Points and the codes that stand for them."""

    codes: Tensor
    """(points, levels)"""
    residuals: Tensor
    """(points, levels, width): what each level was to explain."""
    chosen: Tensor
    """(points, levels, width): what it explained it with."""

    @property
    def total(self) -> Tensor:
        """(points, width): the sum of the codes."""
        return self.chosen.sum(dim=1)


class Quantiser(nn.Module):
    """Encoder, codebooks, decoder."""

    def __init__(self, dimensions: int, settings: WeaveSettings) -> None:
        super().__init__()
        sizes = [dimensions, *settings.hidden, settings.width]
        self.encoder, self.decoder = _layers(sizes), _layers(sizes[::-1])
        self.books = nn.Parameter(torch.zeros(settings.levels, settings.codes, settings.width))
        self._settings = settings

    def points(self, vectors: Tensor) -> Tensor:
        """(vectors, width), of length 1."""
        return functional.normalize(self.encoder(vectors), dim=-1)

    def quantise(self, points: Tensor) -> Quantised:
        """Each level the code nearest to what is left; the last one in even shares where the settings say so."""
        left, codes, residuals, chosen = points, [], [], []
        for level, book in enumerate(self.books):
            with torch.no_grad():
                costs = torch.cdist(left, book).square()
                if self._settings.uniform and level == len(self.books) - 1:
                    costs = costs + prices(costs, self._settings.epsilon, self._settings.iterations)
                found = costs.argmin(dim=1)
            codes.append(found)
            residuals.append(left)
            chosen.append(book[found])
            left = left - book[found].detach()
        return Quantised(torch.stack(codes, 1), torch.stack(residuals, 1), torch.stack(chosen, 1))


def straight(points: Tensor, quantised: Quantised) -> Tensor:
    """The sum of the codes, whose gradient goes on to the encoder as if nothing had been quantised."""
    return points + (quantised.total - points).detach()


def drawn(points: Tensor, quantised: Quantised) -> Tensor:
    """(points, (1 + levels) x width): the point, its first code, the sum of its first two, and so on.

    A squared distance of two is the mean over these: what is to share a branch has to agree from the first code on,
    and the last one, which even shares may have forced apart, counts least. The gradient goes to the encoder and not to
    the codes, for the cheapest way to bring two codes together would be to make all codes the same.
    """
    sums = quantised.chosen.detach().cumsum(dim=1)
    straight_sums = points.unsqueeze(1) + (sums - points.unsqueeze(1)).detach()
    every = torch.cat([points.unsqueeze(1), straight_sums], dim=1)
    scale: float = every.shape[1] ** -0.5
    return every.flatten(1) * scale


def code_loss(quantised: Quantised, commitment: float) -> Tensor:
    """Codes go to what they stand for, and the encoder stays with the codes it chose."""
    pull = (quantised.residuals.detach() - quantised.chosen).square().sum(dim=-1)
    stay = (quantised.residuals - quantised.chosen.detach()).square().sum(dim=-1)
    return (pull + commitment * stay).sum(dim=1).mean()


def _layers(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for place, (before, after) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(before, after)] + ([nn.ReLU()] if place < len(sizes) - 2 else [])
    return nn.Sequential(*layers)
