"""Texts that are tokenised once, and encoded by rows: what tuning an encoder asks of them again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

AT_ONCE = 512
"""Texts encoded in one pass where no gradient is needed."""


class Tokens:
    """Texts as one table of tokens."""

    def __init__(self, model: Any, texts: Sequence[str], prompt: str, device: str) -> None:
        found = model.preprocess([prompt + text for text in texts])
        tables = {name: value for name, value in found.items() if torch.is_tensor(value) and value.ndim == 2}
        mask = tables["attention_mask"].cpu()
        self._lengths = mask.sum(1) if bool(mask[:, 0].all()) else torch.full((len(texts),), mask.shape[1])
        self._tables, self._device = {name: value.to(device) for name, value in tables.items()}, device

    def __len__(self) -> int:
        return len(self._lengths)

    def rows(self, rows: Tensor) -> dict[str, Tensor]:
        """Some of them, as wide as the longest needs; `rows` are on the CPU."""
        longest = int(self._lengths[rows].max())
        here = rows.to(self._device)
        return {name: value[here, :longest] for name, value in self._tables.items()}

    def batches(self, rows: Tensor, size: int) -> list[Tensor]:
        """The rows in parts of like length, so that little is padding."""
        order = rows[self._lengths[rows].argsort(stable=True)]
        return list(torch.split(order, size))


def unit(model: Any, tokens: dict[str, Tensor], cuda: bool) -> Tensor:
    """(texts, dimensions), each of length 1; half precision stays inside the model."""
    half = torch.bfloat16 if cuda and torch.cuda.is_bf16_supported() else torch.float16
    with torch.autocast("cuda", half, enabled=cuda):
        found = model(tokens)["sentence_embedding"]
    return functional.normalize(found.float(), dim=-1)


@torch.no_grad()
def encode(model: Any, texts: Tokens, cuda: bool) -> Tensor:
    """All of them, in order, as a search will see them."""
    was = model.training
    model.eval()
    parts = texts.batches(torch.arange(len(texts)), AT_ONCE)
    vectors = torch.cat([unit(model, texts.rows(part), cuda) for part in parts])
    model.train(was)
    found = torch.empty_like(vectors)
    found[torch.cat(parts).to(vectors.device)] = vectors
    return found
