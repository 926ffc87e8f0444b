"""The codes of a catalogue: a trained quantiser as plain arrays, and one unique code per tool.

They are kept in the work folder of a running training, so that a resumed run continues with the same codes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retrievers.files import disk_room
from retrievers.out_of_memory import report_out_of_memory
from retrievers.weaver.co_usage import CoUsage
from retrievers.weaver.codes import CodePath, FreeCodes, KnownCodes, assign_unique_paths, check_capacity, usage_entropy
from retrievers.weaver.quantiser import Quantiser
from retrievers.weaver.quantiser_training import train_quantiser
from retrievers.weaver.settings import QuantiserSettings
from retrievers.weaver.sinkhorn import balancing_prices

PATHS = "paths"


@dataclass(frozen=True, slots=True)
class TrainedQuantiser:
    """A trained quantiser without its decoder."""

    arrays: Mapping[str, np.ndarray]
    """`books` (levels, codes, width), and the encoder's layers `weight-0`, `bias-0`, …"""

    @classmethod
    def from_model(cls, model: Quantiser) -> TrainedQuantiser:
        """Copy the arrays of a torch model."""
        arrays = {"books": model.books.detach().cpu().numpy().astype(np.float32)}
        for index, layer in enumerate(layer for layer in model.encoder if isinstance(layer, torch.nn.Linear)):
            arrays[f"weight-{index}"] = layer.weight.detach().cpu().numpy()
            arrays[f"bias-{index}"] = layer.bias.detach().cpu().numpy()
        return cls(arrays)

    @property
    def books(self) -> np.ndarray:
        return self.arrays["books"]

    def points(self, vectors: np.ndarray) -> np.ndarray:
        """(vectors, width): the encoder's output, of length 1."""
        points, last = vectors.astype(np.float32), sum(name.startswith("weight-") for name in self.arrays) - 1
        for layer in range(last + 1):
            points = points @ self.arrays[f"weight-{layer}"].T + self.arrays[f"bias-{layer}"]
            points = np.maximum(points, 0) if layer < last else points
        unit: np.ndarray = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
        return unit

    def code_sums(self, paths: Sequence[CodePath]) -> np.ndarray:
        """(tools, width): the sum of each tool's codes."""
        codes = np.array(paths)
        levels = range(codes.shape[1])
        sums: np.ndarray = sum(self.books[level][codes[:, level]] for level in levels).astype(np.float32)
        return sums

    def assign_new(self, vectors: np.ndarray, taken: Collection[CodePath], known: KnownCodes) -> list[CodePath]:
        """The nearest free codes for tools added after training, in order."""
        free = FreeCodes(self.books, taken, known)
        return [free.take_nearest(point) for point in self.points(vectors)]


@dataclass(frozen=True, slots=True)
class CodeAssignment:
    """A catalogue's codes."""

    quantiser: TrainedQuantiser
    paths: list[CodePath]
    summary: dict[str, Any]

    def save(self, path: Path, key: str) -> None:
        """Write to a work folder, whole or not at all."""
        from safetensors.numpy import save_file

        arrays = {name: np.ascontiguousarray(array) for name, array in self.quantiser.arrays.items()}
        with disk_room(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            metadata = {"key": key, "summary": json.dumps(self.summary)}
            save_file({**arrays, PATHS: np.array(self.paths, dtype=np.int64)}, part, metadata)
            os.replace(part, path)

    @classmethod
    def load(cls, path: Path, key: str) -> CodeAssignment | None:
        """Read from a work folder; None where nothing with this key was saved."""
        from safetensors import SafetensorError, safe_open

        try:
            with report_out_of_memory(path), safe_open(path, "np") as file:
                metadata = file.metadata() or {}
                if metadata.get("key") != key:
                    return None
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        except (OSError, SafetensorError):
            return None
        paths = [tuple(row) for row in arrays.pop(PATHS).tolist()]
        return cls(TrainedQuantiser(arrays), paths, json.loads(metadata["summary"]))


def assign_codes(
    vectors: np.ndarray, usage: CoUsage, settings: QuantiserSettings, device: str, show_progress: bool = False
) -> CodeAssignment:
    """Train a quantiser on these tools and give each tool its own code."""
    check_capacity(len(vectors), settings.levels, settings.codebook_size)
    model = train_quantiser(vectors, usage, settings, device, show_progress)
    quantiser = TrainedQuantiser.from_model(model)

    def prices(costs: np.ndarray) -> np.ndarray:
        values: np.ndarray = balancing_prices(torch.from_numpy(costs)).numpy()
        return values

    points = quantiser.points(vectors)
    paths, shared = assign_unique_paths(points, quantiser.books, prices if settings.uniform else None)
    with torch.no_grad():
        originals = torch.from_numpy(vectors.astype(np.float32)).to(device)
        decoded = model.decoder(torch.from_numpy(quantiser.code_sums(paths)).to(device))
        error = (decoded - originals).square().sum(dim=1).mean()
    entropies = usage_entropy(paths, settings.levels, settings.codebook_size)
    summary = {
        "tools": len(paths),
        "levels": settings.levels,
        "codes per level": settings.codebook_size,
        "tokens": settings.levels * settings.codebook_size,
        "tools that shared a code before it was resolved": shared,
        "tools that share a code": len(paths) - len(set(paths)),
        "entropy by level": [round(value, 4) for value in entropies],
        "used codes by level": [len({path[level] for path in paths}) for level in range(settings.levels)],
        "reconstruction error": round(float(error), 4),
        "pairs used together": len(usage.pairs),
        "of these with the same first code": share_with_same_first_code(paths, usage),
    }
    return CodeAssignment(quantiser, paths, summary)


def share_with_same_first_code(paths: Sequence[CodePath], usage: CoUsage) -> float | None:
    """The weighted share of co-used pairs whose first codes are equal; None without pairs."""
    if not len(usage.pairs):
        return None
    same = np.array([paths[a][0] == paths[b][0] for a, b in usage.pairs.tolist()])
    return round(float((usage.weights * same).sum() / usage.weights.sum()), 4)
