"""Files that training leaves in an index: heads, shifts of trained tools, and the pool of training queries.

masstool.safetensors   heads/...; tools/...: texts and shifts of trained tools; pool/...: keys and graph
pool.jsonl             training and dev queries with the ids of their tools, in the order of the keys
trained_tools.json     hashes of the trained tools' texts, with their rows
training.json          dev metrics, choices on dev, the detector's threshold
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

from retrievers.errors import BadInput, IndexBroken
from retrievers.masstool.serving.arrays import load_parts, save_parts, unit_rows
from retrievers.masstool.serving.faithful_heads import serving_heads
from retrievers.masstool.serving.heads import ServingHeads, untrained_heads
from retrievers.masstool.serving.similar_tools import similar_shifts
from retrievers.masstool.settings import MassToolSettings, Modules
from retrievers.out_of_memory import report_out_of_memory
from retrievers.types import ToolId

FORMAT = 2
WEIGHTS, POOL, TRAINED_TOOLS, TRAINING = "masstool.safetensors", "pool.jsonl", "trained_tools.json", "training.json"
Pair = tuple[str, tuple[ToolId, ...]]
"""A query, and the tools it needs."""


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Everything a search needs beside the encoder and the tools."""

    heads: ServingHeads
    trained_texts: np.ndarray
    """(trained tools, dimensions) vectors of their texts"""
    shifts: np.ndarray
    """From text vector to tool vector"""
    signal_shifts: np.ndarray
    """From text vector to the signal that the tool contributes to queries"""
    rows: dict[str, int]
    """Hash of a trained tool's text -> its row"""
    pool_keys: np.ndarray
    """(pool queries, dimensions)"""
    pairs: list[Pair]
    training: dict[str, Any]
    """Content of training.json"""
    pool_graph: np.ndarray | None = None
    """HNSW graph over `pool_keys`, where they are many"""
    from_dev: tuple[bool, ...] | None = ()
    """Which queries of the pool are from dev; None: an earlier version did not note it"""

    def split_pool(self) -> tuple[list[str], list[str]]:
        """Queries of the pool from train and from dev; refuses an index that does not note it."""
        if self.from_dev is None:
            raise BadInput(
                "this MassTool index does not note which of its queries are from dev, so that no rewriter can be "
                "trained or evaluated on dev with it; run `rewrite-index build` again"
            )
        rows = list(zip(self.pairs, self.from_dev, strict=True))
        return [query for (query, _), dev in rows if not dev], [query for (query, _), dev in rows if dev]

    @property
    def threshold(self) -> float | None:
        """Threshold of the detector; None: there is none."""
        detection = self.training.get("detection")
        return float(detection["threshold"]) if detection else None

    def tool_vectors(self, documents: Sequence[str], texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Vectors and signals of tools: trained ones by their own shifts, others by those of similar tools."""
        x = np.ascontiguousarray(texts, np.float32)
        rows = np.array([self.rows.get(text_hash(document), -1) for document in documents], np.int64)
        new, strength = rows < 0, self.heads.transfer_strength()
        moved = []
        for known in (self.shifts, self.signal_shifts):
            shift = np.zeros_like(x)
            shift[~new] = known[rows[~new]]
            shift[new] = similar_shifts(x[new], self.trained_texts, known, strength)
            moved.append(x + shift)
        return unit_rows(moved[0]), moved[1]


def text_hash(document: str) -> str:
    """Key by which a trained tool is recognised."""
    return hashlib.sha256(document.encode("utf-8", "replace")).hexdigest()[:24]


def untrained(settings: MassToolSettings, dimensions: int) -> Artifacts:
    """Artifacts without training: plain search, and votes of confirmed queries."""
    plain = replace(settings, train=None, faithful=False, modules=Modules(detection=False, transfer="none"))
    none = np.zeros((0, dimensions), np.float32)
    return Artifacts(untrained_heads(plain, dimensions), none, none, none, {}, none, [], {})


def save_artifacts(folder: Path, artifacts: Artifacts) -> None:
    """Write all files; `training.json` last. Matrices take 16 bits; an index is computed with what was written."""
    (folder / POOL).write_bytes(encode_pairs(artifacts.pairs, artifacts.from_dev))
    (folder / TRAINED_TOOLS).write_text(json.dumps(artifacts.rows))
    tools = {name: getattr(artifacts, name) for name in ("trained_texts", "shifts", "signal_shifts")}
    pool = {"keys": artifacts.pool_keys}
    if artifacts.pool_graph is not None:
        pool["graph"] = artifacts.pool_graph
    save_parts(folder / WEIGHTS, {"heads": artifacts.heads.state, "tools": tools, "pool": pool}, {"format": FORMAT})
    (folder / TRAINING).write_text(json.dumps(artifacts.training, indent=1))


def files_version(folder: Path) -> list[tuple[int, int, int]]:
    """Size, time of change and inode of each file; the same ones mean the same content."""
    files = [folder / name for name in (WEIGHTS, POOL, TRAINED_TOOLS, TRAINING)]
    states = [path.stat() for path in files if path.exists()]
    return [(state.st_size, state.st_mtime_ns, state.st_ino) for state in states]


def load_artifacts(folder: Path, settings: MassToolSettings) -> Artifacts:
    """Read all files."""
    stored = load_parts(folder / WEIGHTS)
    if stored is None:
        raise IndexBroken(f"{folder / WEIGHTS} is missing or damaged; run `rewrite-index build` again")
    parts, facts = stored
    if facts.get("format") != FORMAT:
        version = facts.get("format", 1)
        raise IndexBroken(
            f"{folder} has format {version}, this version reads {FORMAT}; run `rewrite-index build` again"
        )
    try:
        with report_out_of_memory(folder):
            pool = parts["pool"]
            return Artifacts(
                serving_heads(settings)(settings, parts["heads"]),
                rows=json.loads((folder / TRAINED_TOOLS).read_text()),
                pairs=decode_pairs(pairs_file := (folder / POOL).read_bytes()),
                from_dev=decode_split(pairs_file),
                training=json.loads((folder / TRAINING).read_text()),
                pool_keys=pool["keys"],
                pool_graph=pool.get("graph"),
                **parts["tools"],
            )
    except (KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise IndexBroken(f"{folder} is damaged ({type(error).__name__}); run `rewrite-index build` again") from error


def encode_pairs(pairs: Sequence[Pair], from_dev: Sequence[bool] | None = None) -> bytes:
    """Pairs as JSON lines, with the split of each where it is given."""
    rows: list[dict[str, Any]] = [{"query": query, "tools": list(tools)} for query, tools in pairs]
    if from_dev is not None:
        rows = [row | {"split": "dev" if dev else "train"} for row, dev in zip(rows, from_dev, strict=True)]
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def decode_pairs(data: bytes) -> list[Pair]:
    """Pairs from JSON lines."""
    rows = (json.loads(line) for line in data.split(b"\n") if line)
    return [(row["query"], tuple(row["tools"])) for row in rows]


def decode_split(data: bytes) -> tuple[bool, ...] | None:
    """True for each query that is from dev; None if the lines name no split."""
    rows = [json.loads(line) for line in data.split(b"\n") if line]
    if any("split" not in row for row in rows):
        return None
    return tuple(row["split"] == "dev" for row in rows)
