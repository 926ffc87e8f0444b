"""Arrays of trained heads: one file of named parts, written whole or not at all, and vectors of unit length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from retrievers.masstool.serving.tensor_files import read_tensors, write_tensors

Parts = dict[str, dict[str, np.ndarray]]


def save_parts(path: Path, parts: Mapping[str, Mapping[str, np.ndarray]], facts: Mapping[str, Any]) -> None:
    """Write parts and facts, durably. Matrices take 16 bits; counts, indices and single rows stay as they are."""

    def convert(value: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(_convert(value, np.float16)) if value.ndim else value

    write_tensors(path, parts, facts, convert, save_file)


def load_parts(path: Path) -> tuple[Parts, dict[str, Any]] | None:
    """Read parts and facts, in 32 bits; None where the file is missing or damaged."""
    return read_tensors(path, "np", lambda value: _convert(value, np.float32))


def _convert(value: np.ndarray, kind: type[np.floating[Any]]) -> np.ndarray:
    """A matrix in another precision; everything else as it is."""
    return value.astype(kind) if value.ndim > 1 and np.issubdtype(value.dtype, np.floating) else value


def unit_rows(values: np.ndarray) -> np.ndarray:
    """Scale each row to length 1; a row of zeros stays one."""
    lengths = np.sqrt(np.einsum("...d,...d->...", values, values))[..., None]
    rows: np.ndarray = values / np.maximum(lengths, np.float32(1e-12))
    return rows


def softmax(values: np.ndarray) -> np.ndarray:
    """Shares of the columns."""
    raised = np.exp(values - values.max(axis=-1, keepdims=True))
    shares: np.ndarray = raised / raised.sum(axis=-1, keepdims=True)
    return shares


def sigmoid(values: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    shares: np.ndarray = (1 + np.tanh(values / 2)) / 2
    return shares
