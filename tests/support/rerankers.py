"""Rerankers for tests: one that counts words, failing ones, and a real cross-encoder in a folder with its card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.models import find_model
from retrievers.dense.encoder import fingerprint
from retrievers.rerank.folder import RerankChoice, RerankerCard, write_card
from retrievers.text import tokens

BEHIND_BM25 = RerankChoice("bm25", 10, 1.0, {"intercept": 0.0, "weights": [1.0, 0.0, 0.0]}, 0.5)


class CountingReranker:
    """Scores a tool by the number of characters that its text lacks up to a hundred: the shortest text first."""

    fingerprint = "counting"

    def __init__(self) -> None:
        self.read: list[tuple[str, list[str]]] = []

    def score(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> list[np.ndarray]:
        self.read += [(query, list(texts)) for query, texts in zip(queries, documents, strict=True)]
        return [np.array([1.0 - len(tokens(text)) for text in texts]) for texts in documents]


class BrokenReranker(CountingReranker):
    """Answers not-a-number, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self._error = error

    def score(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> list[np.ndarray]:
        if self._error is not None:
            raise self._error
        return [np.full(len(texts), np.nan) for texts in documents]


def write_cross_encoder(folder: Path, *choices: RerankChoice, **facts: Any) -> Path:
    """A cross-encoder on MiniLM's weights whose head is not trained."""
    import torch

    from retrievers.rerank.cross_encoder import CrossEncoderReranker

    base = find_model("bundled:minilm")
    torch.manual_seed(0)
    CrossEncoderReranker(base, 512, 128, "cpu").save(folder)
    usual = {"base": "bundled:minilm", "base_fingerprint": fingerprint(base), "max_length": 128, "max_tool": 48}
    write_card(
        folder, RerankerCard("cross-encoder", method="full", choices=choices or (BEHIND_BM25,), **{**usual, **facts})
    )
    return folder
