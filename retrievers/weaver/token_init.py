"""The rows that code tokens begin with: directions from the codebook, lengths as the model's own rows have.

A map from the codes' space to the model's is fitted to the catalogue: the sum of a tool's codes goes to the mean of the
tokens of its name. Each code is then sent through it, so that codes which are near begin near, and a first code begins
as what its tools are called.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

RIDGE = 1e-2


def from_books(rows: Tensor, books: np.ndarray, totals: np.ndarray, names: Tensor) -> Tensor:
    """(levels x codes, dimensions) from the model's `rows`, the tools' summed codes and their names' mean rows."""
    table = rows.float()
    middle = table.mean(dim=0)
    usual = float((table - middle).norm(dim=1).median())
    given = torch.from_numpy(totals.astype(np.float64))
    wanted = (names.float() - names.float().mean(dim=0)).cpu().double()
    centred = given - given.mean(dim=0)
    gram = centred.T @ centred
    ridge = RIDGE * torch.diagonal(gram).mean().clamp(min=1e-9) * torch.eye(len(gram), dtype=torch.float64)
    projection = torch.linalg.solve(gram + ridge, centred.T @ wanted)
    made: list[Tensor] = []
    for book in torch.from_numpy(books.astype(np.float64)):
        moved = (book - book.mean(dim=0)) @ projection
        length = moved.norm(dim=1, keepdim=True)
        # A map that knows nothing of a code (a catalogue of one tool, say) gives it any direction.
        noise = torch.randn(moved.shape, generator=torch.Generator().manual_seed(len(made)), dtype=torch.float64)
        moved = torch.where(length > 1e-9, moved / length.clamp(min=1e-9), noise / noise.norm(dim=1, keepdim=True))
        made.append(middle.cpu() + usual * moved.float())
    return torch.cat(made)
