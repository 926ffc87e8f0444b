"""AdaKT: brings the detection tower's state into what the neighbours contribute."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from retrievers.masstool.settings import Transfer


def transfer_detection(method: Transfer, layer: nn.Module, info: Tensor, searched: Tensor) -> Tensor:
    """Join the state `info` and the searched vector of one view."""
    match method:
        case "gating":
            gated: Tensor = torch.sigmoid(layer(info)) * searched
            return gated
        case "addition":
            summed: Tensor = layer(info) + searched
            return summed
        case "concatenation":
            mixed: Tensor = layer(torch.cat([info, searched], dim=-1))
            return mixed
        case _:
            known = layer(info)
            scores = torch.stack([(searched * searched).sum(-1), (searched * known).sum(-1)], dim=-1)
            shares = torch.softmax(scores / searched.shape[-1] ** 0.5, dim=-1)
            attended: Tensor = shares[:, :1] * searched + shares[:, 1:] * known
            return attended
