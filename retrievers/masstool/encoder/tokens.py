"""Texts that are tokenised once, and encoded by rows: what tuning an encoder asks of them again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from retrievers.masstool.normalize import unit

AT_ONCE = 512
"""Texts encoded in one pass where no gradient is needed."""
PADDED = 2.0
"""Texts are joined to one pass as long as there is no more than so many times the tokens."""


class Tokens:
    """Texts as one table of tokens."""

    def __init__(self, model: Any, texts: Sequence[str], prompt: str, device: str) -> None:
        found = model.preprocess([prompt + text for text in texts])
        tables = {name: value for name, value in found.items() if torch.is_tensor(value) and value.ndim == 2}
        mask = tables["attention_mask"].cpu()
        self.left = not bool(mask[:, 0].all())
        """Is the padding in front? Then no text can be cut or made longer at its end."""
        self._lengths = torch.full((len(texts),), mask.shape[1]) if self.left else mask.sum(1)
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
        return list(torch.split(rows[self.order(rows)], size))

    def order(self, rows: Tensor) -> Tensor:
        """Places of the rows, by length."""
        return self._lengths[rows].argsort(stable=True)


def embedded(model: Any, tokens: dict[str, Tensor], cuda: bool) -> Tensor:
    """(texts, dimensions), each of length 1; half precision stays inside the model."""
    half = torch.bfloat16 if cuda and torch.cuda.is_bf16_supported() else torch.float16
    with torch.autocast("cuda", half, enabled=cuda):
        found = model(tokens)["sentence_embedding"]
    return unit(found.float())


def embedded_together(model: Any, parts: Sequence[dict[str, Tensor]], cuda: bool, join: bool) -> list[Tensor]:
    """The vectors of each part. `join`: in as few passes as padding allows, for a GPU that a pass keeps waiting."""
    if not join:
        return [embedded(model, each, cuda) for each in parts]
    widths = [each["attention_mask"].shape[1] for each in parts]
    groups: list[list[int]] = []
    for place in sorted(range(len(parts)), key=lambda place: -widths[place]):
        if not groups or _padding([parts[each]["attention_mask"] for each in (*groups[-1], place)]) > PADDED:
            groups.append([])
        groups[-1].append(place)
    found: dict[int, Tensor] = {}
    for group in groups:
        some, width = [parts[place] for place in group], widths[group[0]]
        tokens = {
            name: torch.cat([functional.pad(each[name], (0, width - each[name].shape[1])) for each in some])
            for name in some[0]
        }
        sizes = [len(each["attention_mask"]) for each in some]
        found |= zip(group, torch.split(embedded(model, tokens, cuda), sizes), strict=True)
    return [found[place] for place in range(len(parts))]


def _padding(masks: Sequence[Tensor]) -> float:
    """How many times the tokens there are once all are as wide as the widest."""
    widest = max(each.shape[1] for each in masks)
    return widest * sum(map(len, masks)) / max(1, sum(each.numel() for each in masks))


@torch.no_grad()
def encode(model: Any, texts: Tokens, cuda: bool) -> Tensor:
    """All of them, in order, as a search will see them."""
    was = model.training
    model.eval()
    parts = texts.batches(torch.arange(len(texts)), AT_ONCE)
    vectors = torch.cat([embedded(model, texts.rows(part), cuda) for part in parts])
    model.train(was)
    found = torch.empty_like(vectors)
    found[torch.cat(parts).to(vectors.device)] = vectors
    return found
