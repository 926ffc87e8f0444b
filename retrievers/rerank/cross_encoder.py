"""A cross-encoder: request and tool are one text, and a head on its first token gives the score."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from torch import Tensor

from retrievers.dense.encoder import check_device
from retrievers.rerank.cutting import TextCutter, token_offsets
from retrievers.rerank.loading import load_safely
from retrievers.rerank.padding import groups_by_length
from retrievers.rerank.settings import MIN_TOOL, SPECIAL

BATCH_SIZE = {"cpu": 32}
GPU_BATCH = 256


class CrossEncoderReranker:
    """Scores pairs of request and tool."""

    max_training_pairs = 512
    """Pairs whose gradients are computed together."""
    max_training_characters = 1_000_000
    """Characters whose gradients are computed together, padding included."""

    def __init__(
        self, folder: Path, max_length: int, max_tool: int, device: str | None = None, fingerprint: str = ""
    ) -> None:
        """An encoder without a head for one score gets a new one, which training has to fill."""
        self.fingerprint, self.device = fingerprint, check_device(device)
        self._encoder: Any = load_safely(
            folder,
            lambda: CrossEncoder(
                str(folder),
                num_labels=1,
                device=self.device,
                local_files_only=True,
                model_kwargs={"dtype": torch.float32},
            ),
        )
        self.module: Any = self._encoder.model
        self._tokenizer: Any = self._encoder.tokenizer
        positions = int(getattr(self.module.config, "max_position_embeddings", max_length))
        self._max_length = min(max_length, positions)
        self._cutter = TextCutter(token_offsets(self._tokenizer), self._max_length - SPECIAL - MIN_TOOL, max_tool)
        self._half = False
        self.module.eval()

    @property
    def trained(self) -> Any:
        """The module that training changes."""
        return self.module

    def prepare_training(self) -> None:
        """Make training fast on a GPU: in bfloat16, with an attention whose gradient is a number there."""
        if self.device != "cpu":
            self.module.set_attn_implementation("eager")
            self._half = True

    def logits(self, requests: Sequence[str], tools: Sequence[str]) -> Tensor:
        """(pairs,): scores, with gradients in training. The texts are cut already."""
        encoded = self._encode(requests, tools)
        groups = groups_by_length([len(tokens) for tokens in encoded["input_ids"]], len(requests), self.device)
        scores = torch.cat([self._group_logits(encoded, group) for group in groups])
        return scores[torch.tensor([index for group in groups for index in group]).argsort().to(scores.device)]

    def _encode(self, requests: Sequence[str], tools: Sequence[str]) -> Any:
        return self._tokenizer(
            list(requests), list(tools), truncation="only_second", max_length=self._max_length, verbose=False
        )

    def _group_logits(self, encoded: Any, group: Sequence[int]) -> Tensor:
        rows = {name: [values[index] for index in group] for name, values in encoded.items()}
        padded = self._tokenizer.pad(rows, return_tensors="pt").to(self.device)
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self._half):
            logits: Tensor = self.module(**padded).logits
        return logits[:, 0].float()

    def cut(self, request: str, tools: Sequence[str]) -> tuple[str, list[str]]:
        """Request and tools as the model reads them."""
        return self._cutter.request(request), [self._cutter.tool(tool) for tool in tools]

    def score(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """All pairs in batches of similar length."""
        if not documents:
            return []
        pairs = [
            (request, tool)
            for query, tools in zip(queries, documents, strict=True)
            for request, cut in [self.cut(query, tools)]
            for tool in cut
        ]
        order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]) - len(pairs[i][1]))
        scores = np.empty(len(pairs), np.float32)
        size = BATCH_SIZE.get(self.device, GPU_BATCH)
        with torch.inference_mode():
            for start in range(0, len(order), size):
                rows = order[start : start + size]
                encoded = self._encode(*zip(*(pairs[i] for i in rows), strict=True))
                scores[rows] = self._group_logits(encoded, range(len(rows))).cpu().numpy()
        ends = np.cumsum([len(tools) for tools in documents])[:-1]
        return [part.astype(np.float64) for part in np.split(scores, ends)]

    def save(self, folder: Path) -> None:
        """Write the model as sentence-transformers does."""
        self._encoder.save_pretrained(str(folder), create_model_card=False)
