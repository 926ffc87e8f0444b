"""What training leaves in an index: heads, lenders and the pool of training queries, as plain files.

masstool.safetensors   heads/...; lenders: texts, shifts of their vectors and of their signals; pool: vectors
pool.jsonl             the training queries with the ids of their tools, in the order of the vectors
lenders.json           hashes of the lenders' texts, with their rows
training.json          how it came to that: dev metrics, what dev chose, the detector's threshold
encoder/               the tuned encoder, where one was tuned
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from retrievers.errors import IndexBroken
from retrievers.masstool.model import Heads
from retrievers.masstool.neighbour_transfer import lent
from retrievers.masstool.settings import MassToolSettings, Modules
from retrievers.masstool.training.checkpoints import load, save
from retrievers.out_of_memory import report_out_of_memory
from retrievers.types import ToolId

WEIGHTS = "masstool.safetensors"
Pair = tuple[str, tuple[ToolId, ...]]
"""A query, and the tools it needs."""


@dataclass(frozen=True, slots=True)
class Learned:
    """All that searching needs beside the encoder and the tools."""

    heads: Heads
    lenders: Tensor
    shifts: Tensor
    signals: Tensor
    hashes: dict[str, int]
    """Of the lenders' texts, to their rows"""
    keys: Tensor
    """(queries of the pool, dimensions)"""
    pairs: list[Pair]
    facts: dict[str, Any]
    graph: np.ndarray | None = None
    """Over the keys, where they are many."""

    @property
    def threshold(self) -> float | None:
        """Where the detector says that a tool is needed; None: there is no detector."""
        found = self.facts.get("detection")
        return float(found["threshold"]) if found else None

    def place(self, documents: Sequence[str], texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Vectors and signals of tools: known ones where training put them, others where text and lenders put them."""
        x = torch.from_numpy(np.ascontiguousarray(texts))
        known = [self.hashes.get(text_hash(document), -1) for document in documents]
        rows = torch.tensor(known)
        fresh, strength = rows < 0, float(self.heads.shares[4])
        placed = []
        for moved in (self.shifts, self.signals):
            shift = torch.zeros_like(x)
            shift[~fresh] = moved[rows[~fresh]]
            shift[fresh] = lent(x[fresh], self.lenders, moved, strength)
            placed.append(x + shift)
        return functional.normalize(placed[0], dim=-1).numpy(), placed[1].numpy()


def text_hash(document: str) -> str:
    """By which a tool's text is recognised."""
    return hashlib.sha256(document.encode("utf-8", "replace")).hexdigest()[:24]


def blank(settings: MassToolSettings, dimensions: int) -> Learned:
    """Before any training: plain search, and neighbours among what was confirmed."""
    modules = Modules(detection=False, transfer="none")
    plain = replace(settings, train=None, faithful=False, adapter=False, modules=modules)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        heads = Heads(plain, dimensions, 0, 0).eval().requires_grad_(False)
    none = torch.zeros(0, dimensions)
    return Learned(heads, none, none, none, {}, none, [], {})


def store(folder: Path, learned: Learned) -> None:
    """Writes all of it; `training.json` last."""
    (folder / "pool.jsonl").write_bytes(encode_pairs(learned.pairs))
    (folder / "lenders.json").write_text(json.dumps(learned.hashes))
    tensors = {f"heads/{name}": value for name, value in learned.heads.state_dict().items()}
    tensors |= {"lenders": learned.lenders, "shifts": learned.shifts, "signals": learned.signals, "keys": learned.keys}
    if learned.graph is not None:
        tensors["graph"] = torch.from_numpy(learned.graph)
    save(folder / WEIGHTS, tensors, {})
    (folder / "training.json").write_text(json.dumps(learned.facts, indent=1))


def restore(folder: Path, settings: MassToolSettings) -> Learned:
    """Reads all of it."""
    found = load(folder / WEIGHTS)
    if found is None:
        raise IndexBroken(f"{folder / WEIGHTS} is missing or damaged; build the index again")
    tensors = found[0]
    try:
        with report_out_of_memory(folder):
            state = {name[6:]: value for name, value in tensors.items() if name.startswith("heads/")}
            with torch.random.fork_rng(devices=[]):
                heads = Heads(settings, tensors["keys"].shape[1], len(state["residual"]), len(state["queries"])).eval()
            heads.words = state["words"]
            heads.load_state_dict(state)
            return Learned(
                heads.requires_grad_(False),
                tensors["lenders"],
                tensors["shifts"],
                tensors["signals"],
                json.loads((folder / "lenders.json").read_text()),
                tensors["keys"],
                decode_pairs((folder / "pool.jsonl").read_bytes()),
                json.loads((folder / "training.json").read_text()),
                tensors["graph"].numpy() if "graph" in tensors else None,
            )
    except (KeyError, ValueError, RuntimeError, OSError) as error:
        raise IndexBroken(f"{folder} is damaged ({type(error).__name__}); build the index again") from error


def encode_pairs(pairs: Sequence[Pair]) -> bytes:
    """One line a pair."""
    lines = (json.dumps({"query": query, "tools": list(tools)}, ensure_ascii=False) for query, tools in pairs)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def decode_pairs(data: bytes) -> list[Pair]:
    """Pairs out of lines."""
    rows = (json.loads(line) for line in data.split(b"\n") if line)
    return [(row["query"], tuple(row["tools"])) for row in rows]
