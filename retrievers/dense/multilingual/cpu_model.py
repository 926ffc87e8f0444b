"""The multilingual encoder on ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from retrievers.dense.adapter import map_tensors
from retrievers.dense.cpu.folder import NoCpuRuntime
from retrievers.dense.cpu.session import CpuEncoder
from retrievers.dense.multilingual.pieces import MAX_PIECES, SETTINGS, VOCABULARY, WEIGHTS, WordPieces

TABLE = "embedding.weight"


class MultilingualCpuModel(CpuEncoder):
    """Word pieces and their vectors; the rest is a graph."""

    def __init__(self, folder: Path, weights: Mapping[str, np.ndarray], graph: bytes) -> None:
        super().__init__(graph)
        self._pieces, self._table = WordPieces((folder / VOCABULARY).read_bytes()), weights[TABLE]
        settings = json.loads((folder / SETTINGS).read_text())
        self._max_length = int(settings.get("max_seq_length", MAX_PIECES))

    @property
    def table(self) -> np.ndarray:
        return self._table

    def tokens(self, texts: list[str]) -> list[list[int]]:
        return [self._pieces.encode(text, self._max_length) for text in texts]

    def inputs(self, ids: list[int]) -> dict[str, np.ndarray]:
        return {"pieces": self._table[ids].astype(np.float32)[None]}


def map_weights(folder: Path) -> dict[str, np.ndarray]:
    """Weights by name, mapped: of the table of word pieces (262 MB) only rows that are used are read."""
    weights = dict(map_tensors(folder / WEIGHTS, "r"))
    if TABLE not in weights:
        raise NoCpuRuntime(f"{WEIGHTS} has tensors of an unknown name or number format")
    return weights
