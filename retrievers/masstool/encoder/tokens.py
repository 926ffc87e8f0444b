"""Texts tokenised once and encoded by rows, many times in a tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from retrievers.masstool.normalize import normalize

BATCH_SIZE = 512
"""Texts per pass where no gradient is needed."""
MAX_PADDING = 2.0
"""Texts are joined to one pass as long as padding multiplies the tokens by no more than this."""


class TokenTable:
    """Tokens of several texts, padded to one table."""

    def __init__(self, model: Any, texts: Sequence[str], prompt: str, device: str) -> None:
        features = model.preprocess([prompt + text for text in texts])
        tables = {name: value for name, value in features.items() if torch.is_tensor(value) and value.ndim == 2}
        mask = tables["attention_mask"].cpu()
        self.left_padded = not bool(mask[:, 0].all())
        """Padding is in front, so that no text can be cut or padded at its end."""
        self._lengths = torch.full((len(texts),), mask.shape[1]) if self.left_padded else mask.sum(1)
        self._tables, self._device = {name: value.to(device) for name, value in tables.items()}, device

    def __len__(self) -> int:
        return len(self._lengths)

    def rows(self, rows: Tensor) -> dict[str, Tensor]:
        """Tokens of some rows (on the CPU), as wide as the longest of them."""
        longest = int(self._lengths[rows].max())
        here = rows.to(self._device)
        return {name: value[here, :longest] for name, value in self._tables.items()}

    def order_by_length(self, rows: Tensor) -> Tensor:
        """Positions in `rows`, sorted by length."""
        return self._lengths[rows].argsort(stable=True)


def embed(model: Any, tokens: dict[str, Tensor], cuda: bool) -> Tensor:
    """(texts, dimensions) unit vectors; half precision stays inside the model."""
    half = torch.bfloat16 if cuda and torch.cuda.is_bf16_supported() else torch.float16
    with torch.autocast("cuda", half, enabled=cuda):
        vectors = model(tokens)["sentence_embedding"]
    return normalize(vectors.float())


def embed_parts(model: Any, parts: Sequence[dict[str, Tensor]], cuda: bool, join: bool) -> list[Tensor]:
    """Vectors of each part. `join`: in as few passes as padding allows, since a GPU waits for each pass."""
    if not join:
        return [embed(model, part, cuda) for part in parts]
    widths = [part["attention_mask"].shape[1] for part in parts]
    groups: list[list[int]] = []
    for index in sorted(range(len(parts)), key=lambda index: -widths[index]):
        if not groups or _padding([parts[member]["attention_mask"] for member in (*groups[-1], index)]) > MAX_PADDING:
            groups.append([])
        groups[-1].append(index)
    vectors: dict[int, Tensor] = {}
    for group in groups:
        members, width = [parts[index] for index in group], widths[group[0]]
        tokens = {
            name: torch.cat([functional.pad(part[name], (0, width - part[name].shape[1])) for part in members])
            for name in members[0]
        }
        sizes = [len(part["attention_mask"]) for part in members]
        vectors |= zip(group, torch.split(embed(model, tokens, cuda), sizes), strict=True)
    return [vectors[index] for index in range(len(parts))]


def _padding(masks: Sequence[Tensor]) -> float:
    """Factor by which the tokens grow when all parts are as wide as the widest."""
    widest = max(mask.shape[1] for mask in masks)
    return widest * sum(map(len, masks)) / max(1, sum(mask.numel() for mask in masks))


@torch.no_grad()
def encode(model: Any, texts: TokenTable, cuda: bool) -> Tensor:
    """Vectors of all texts in order, in evaluation mode."""
    was_training = model.training
    model.eval()
    rows = torch.arange(len(texts))
    batches = torch.split(rows[texts.order_by_length(rows)], BATCH_SIZE)
    vectors = torch.cat([embed(model, texts.rows(batch), cuda) for batch in batches])
    model.train(was_training)
    ordered = torch.empty_like(vectors)
    ordered[torch.cat(batches).to(vectors.device)] = vectors
    return ordered
