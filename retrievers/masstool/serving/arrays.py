"""Arrays of trained heads: one file of named parts, written whole or not at all, and vectors of unit length."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from retrievers.files import disk_room
from retrievers.out_of_memory import report_out_of_memory

Parts = dict[str, dict[str, np.ndarray]]


def save_parts(path: Path, parts: Mapping[str, Mapping[str, np.ndarray]], facts: Mapping[str, Any]) -> None:
    """Write parts and facts, durably. Matrices take 16 bits; counts, indices and single rows stay as they are."""
    file = path.with_name(f"{path.name}.part")
    arrays = {
        f"{part}/{name}": np.ascontiguousarray(_convert(value, np.float16)) if value.ndim else value
        for part, values in parts.items()
        for name, value in values.items()
    }
    with disk_room(path.parent):
        save_file(arrays, file, {"facts": json.dumps(facts)})
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(file, path)


def load_parts(path: Path) -> tuple[Parts, dict[str, Any]] | None:
    """Read parts and facts, in 32 bits; None where the file is missing or damaged."""
    if not path.exists():
        return None
    try:
        with report_out_of_memory(path), safe_open(path, "np") as opened:
            parts: defaultdict[str, dict[str, np.ndarray]] = defaultdict(dict)
            for key in opened.keys():  # noqa: SIM118
                part, _, name = key.partition("/")
                parts[part][name] = _convert(opened.get_tensor(key), np.float32)
            return parts, json.loads((opened.metadata() or {})["facts"])
    except (SafetensorError, OSError, ValueError, KeyError):
        return None


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
