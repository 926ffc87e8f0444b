"""Universal Sentence Encoder multilingual v3 (16 languages): word pieces, n-gram convolutions, a mean, a small network.

Yang et al., 2020, https://arxiv.org/abs/1907.04307 (the convolutional model).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules import InputModule
from torch import Tensor, nn
from torch.nn import functional

from retrievers.dense.multilingual.pieces import (
    CHANNELS,
    EPSILON,
    HIDDEN,
    MAX_PIECES,
    ORDERS,
    PIECES,
    SETTINGS,
    VOCABULARY,
    WEIGHTS,
    WIDTH,
    WordPieces,
    padding,
)


class NgramBranch(nn.Module):
    """Two residual convolutions over n-grams of one order."""

    def __init__(self, order: int) -> None:
        super().__init__()
        self._padding = padding(order)
        self.project = nn.Linear(WIDTH, CHANNELS)
        self.norm = nn.LayerNorm(CHANNELS, EPSILON)
        self.convolutions = nn.ModuleList(nn.Conv1d(CHANNELS, CHANNELS, order) for _ in range(2))

    def forward(self, pieces: Tensor, mask: Tensor) -> Tensor:
        """(texts, length, channels) of embeddings (texts, length, width)."""
        hidden: Tensor = self.norm(self.project(pieces))
        for convolution in self.convolutions:
            # Padding counts as zeros, so that a text's vector does not depend on the batch.
            hidden = hidden * mask
            padded = functional.pad(hidden.transpose(1, 2), self._padding)
            hidden = functional.relu(convolution(padded)).transpose(1, 2) + hidden
        return hidden


class MultilingualEncoder(InputModule):
    """Texts to unit vectors of 512 dimensions."""

    config_file_name = SETTINGS
    config_keys = ["max_seq_length"]  # noqa: RUF012 - the library's own declaration
    pooled_by = ("embedding", "branches", "norm")
    """The layers in front of the mean; the network after it is small enough to be trained on a CPU."""

    def __init__(self, vocabulary: bytes, max_seq_length: int = MAX_PIECES) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.max_seq_length = max_seq_length
        self._vocabulary = vocabulary
        self._pieces = WordPieces(vocabulary)
        features = WIDTH + CHANNELS * len(ORDERS)
        self.embedding = nn.Embedding(PIECES, WIDTH)
        self.branches = nn.ModuleList(NgramBranch(order) for order in ORDERS)
        self.norm = nn.LayerNorm(features, EPSILON)
        self.project = nn.Linear(features, WIDTH)
        self.first = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.second = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.second_shortcut = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.third = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.fourth = nn.Linear(WIDTH, WIDTH, bias=False)
        self.fourth_shortcut = nn.Linear(HIDDEN, WIDTH, bias=False)

    def get_embedding_dimension(self) -> int:
        """Dimensions of a vector."""
        return WIDTH

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **_: Any) -> dict[str, Tensor]:
        """Ids of word pieces, padded to the longest text, and the mask of what is not padding."""
        rows = [self._pieces.encode((prompt or "") + str(text), self.max_seq_length) for text in inputs]
        ids = torch.zeros(len(rows), max(map(len, rows), default=0), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            mask[index, : len(row)] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def pool(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """The mean of a text's word pieces behind the layers in `pooled_by`, and the root of their number."""
        mask = features["attention_mask"].unsqueeze(-1).to(self.embedding.weight.dtype)
        pieces = self.embedding(features["input_ids"])
        grams = [branch(pieces, mask) for branch in self.branches]
        normed = self.norm(torch.cat([pieces, *grams], dim=-1)) * mask
        length = mask.sum(dim=1)
        return {"pooled": normed.sum(dim=1) / length, "root": length.sqrt()}

    def forward(self, features: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        """Add `sentence_embedding` (texts, width) to the features, which are tokens or what `pool` made of them."""
        pooled = features if "pooled" in features else self.pool(features)
        # The projection is linear: one per text instead of one per word piece.
        mean = self.project(pooled["pooled"]) * pooled["root"]
        hidden = functional.relu(self.second(functional.relu(self.first(mean))) + self.second_shortcut(mean))
        final = self.fourth(functional.relu(self.third(hidden))) + self.fourth_shortcut(hidden)
        features["sentence_embedding"] = functional.normalize(torch.tanh(final), dim=-1)
        return features

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write weights, vocabulary and settings."""
        folder = Path(output_path)
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / WEIGHTS)
        (folder / VOCABULARY).write_bytes(self._vocabulary)
        (folder / SETTINGS).write_text(json.dumps(self.get_config_dict()))

    @classmethod
    def load(cls, model_name_or_path: str, *_: Any, **__: Any) -> Self:
        """Read a folder that `save` wrote; weights stay on disk until they are used."""
        folder = Path(model_name_or_path)
        settings = json.loads((folder / SETTINGS).read_text())
        with torch.device("meta"):
            module = cls((folder / VOCABULARY).read_bytes(), **settings)
        module.load_state_dict(load_file(folder / WEIGHTS), assign=True)
        return module
