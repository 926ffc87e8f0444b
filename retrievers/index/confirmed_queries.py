"""Queries whose tools a user confirmed, stored for the retrievers that learn from feedback.

They are in two files per retriever, keys and pairs, which a confirmation replaces by longer ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from retrievers.errors import BadInput, IndexBroken
from retrievers.files import Entry, check, get_array, put_array, put_bytes
from retrievers.index.manifest import Manifest
from retrievers.index.tools import unknown_ids
from retrievers.kind import Kind, LearnsFromFeedback
from retrievers.text import clean
from retrievers.types import ToolId

KEYS, PAIRS = "confirmed-keys", "confirmed-pairs"
Pair = tuple[str, tuple[ToolId, ...]]
Confirmed = tuple[np.ndarray, list[Pair]]


def read(folder: Path, extras: Mapping[str, Entry]) -> Confirmed | None:
    """Keys and pairs confirmed so far; None: there are none."""
    if not extras:
        return None
    keys, path = get_array(folder, extras[KEYS]), folder / extras[PAIRS].file
    try:
        lines = check(folder, extras[PAIRS]).read_bytes().split(b"\n")
        rows = [json.loads(line) for line in lines if line]
        pairs: list[Pair] = [(row["query"], tuple(row["tools"])) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise IndexBroken(f"{path} is damaged; build the index again") from error
    if len(keys) != len(pairs):
        raise IndexBroken(f"{path} has {len(pairs)} queries and {len(keys)} keys; build the index again")
    return keys, pairs


def check_pairs(
    pairs: Sequence[tuple[str, Sequence[ToolId]]], known: Mapping[ToolId, object], index: Path
) -> list[Pair]:
    """The pairs as they are stored: each query once, with its last tools."""
    tools_of: dict[str, tuple[ToolId, ...]] = {}
    for query, tools in pairs:
        text = clean(query)
        if not text or not tools:
            raise BadInput("a confirmed query has words and at least one tool")
        missing = [tool for tool in tools if tool not in known]
        if missing:
            raise BadInput(f"nothing was confirmed: {unknown_ids(index, missing, known)}")
        tools_of[text] = tuple(dict.fromkeys(tools))
    if not tools_of:
        raise BadInput("there is nothing to confirm")
    return list(tools_of.items())


def write(folder: Path, manifest: Manifest, kinds: Mapping[str, Kind], fresh: Sequence[Pair]) -> Manifest:
    """Add the pairs to every retriever that learns from feedback; a query confirmed before is replaced."""
    parts = dict(manifest.retrievers)
    learners = {name: kind for name, kind in kinds.items() if isinstance(kind, LearnsFromFeedback)}
    if not learners:
        raise BadInput(f"no retriever of {folder} learns from confirmed queries; build one of kind masstool")
    replaced = {query for query, _ in fresh}
    for name, kind in learners.items():
        keys, pairs = kind.feedback_keys([query for query, _ in fresh]), list(fresh)
        before = read(folder, parts[name].extras)
        if before is not None:
            kept = [index for index, (query, _) in enumerate(before[1]) if query not in replaced]
            keys = np.concatenate([before[0][kept], keys])
            pairs = [*(before[1][index] for index in kept), *pairs]
        lines = (json.dumps({"query": query, "tools": tools}, ensure_ascii=False) for query, tools in pairs)
        data = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        extras = {
            KEYS: put_array(folder, f"{name}-{KEYS}", keys.astype(np.float32)),
            PAIRS: put_bytes(folder, f"{name}-{PAIRS}", "jsonl", data),
        }
        parts[name] = replace(parts[name], extras=extras)
    return replace(manifest, retrievers=parts)
