"""Initial embeddings of code tokens: directions from the codebook, lengths as in the model's own embeddings.

A linear map from the space of codes to the model's is fitted to the catalogue: the sum of a tool's codes maps to the
mean of the tokens of its name. Each code goes through it, so that similar codes start similar, and a first code starts
like the names of its tools.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

RIDGE = 1e-2


def code_token_rows(rows: Tensor, books: np.ndarray, code_sums: np.ndarray, names: Tensor) -> Tensor:
    """(levels x codes, dimensions) from the model's `rows`, the tools' summed codes and their names' mean rows."""
    table = rows.float()
    middle = table.mean(dim=0)
    usual_length = float((table - middle).norm(dim=1).median())
    given = torch.from_numpy(code_sums.astype(np.float64))
    wanted = (names.float() - names.float().mean(dim=0)).cpu().double()
    centred = given - given.mean(dim=0)
    gram = centred.T @ centred
    ridge = RIDGE * torch.diagonal(gram).mean().clamp(min=1e-9) * torch.eye(len(gram), dtype=torch.float64)
    projection = torch.linalg.solve(gram + ridge, centred.T @ wanted)
    levels: list[Tensor] = []
    for book in torch.from_numpy(books.astype(np.float64)):
        moved = (book - book.mean(dim=0)) @ projection
        length = moved.norm(dim=1, keepdim=True)
        # A code without a direction (in a catalogue of one tool, say) gets a random one.
        noise = torch.randn(moved.shape, generator=torch.Generator().manual_seed(len(levels)), dtype=torch.float64)
        moved = torch.where(length > 1e-9, moved / length.clamp(min=1e-9), noise / noise.norm(dim=1, keepdim=True))
        levels.append(middle.cpu() + usual_length * moved.float())
    return torch.cat(levels)
