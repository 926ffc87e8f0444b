"""K-means on whatever device the vectors are: where codes begin."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 25


def kmeans(vectors: Tensor, count: int, chance: torch.Generator) -> Tensor:
    """(count, dimensions): centres, begun far apart (k-means++); of few vectors some lie beside others."""
    centres = _begun(vectors, count, chance)
    for _ in range(ROUNDS):
        nearest = torch.cdist(vectors, centres).argmin(dim=1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, vectors)
        counts = torch.bincount(nearest, minlength=count).unsqueeze(1)
        centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
    return centres


def _begun(vectors: Tensor, count: int, chance: torch.Generator) -> Tensor:
    first = vectors[int(torch.randint(len(vectors), (1,), generator=chance))]
    chosen, apart = [first], (vectors - first).square().sum(dim=1)
    scale = float(vectors.std()) if len(vectors) > 1 else 1.0
    while len(chosen) < count:
        if float(apart.max()) <= 1e-12:  # every vector is a centre: the rest lies a little beside
            base = vectors[int(torch.randint(len(vectors), (1,), generator=chance))]
            noise = torch.randn(vectors.shape[1], generator=chance).to(vectors)
            chosen.append(base + 0.1 * max(scale, 1e-3) * noise)
            continue
        edges = apart.double().cumsum(0)
        drawn = float(torch.rand(1, generator=chance, dtype=torch.float64)) * float(edges[-1])
        place = int(torch.searchsorted(edges, drawn, right=True).clamp(max=len(vectors) - 1))
        chosen.append(vectors[place])
        apart = torch.minimum(apart, (vectors - vectors[place]).square().sum(dim=1))
    return torch.stack(chosen)
