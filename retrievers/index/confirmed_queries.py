"""Queries whose tools somebody confirmed: kept beside the retrievers that remember, and found for the next one alike.

They lie in two files a retriever, keys and pairs, which a confirmation replaces by longer ones; as with everything
here, the manifest names them once they are whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from retrievers.errors import BadInput, IndexBroken
from retrievers.files import Entry, check, get_array, put_array, put_bytes
from retrievers.index.manifest import Manifest, Part
from retrievers.index.unknown_ids import unknown
from retrievers.kind import Kind, LearnsFromFeedback
from retrievers.text import clean
from retrievers.types import ToolId

KEYS, PAIRS = "confirmed-keys", "confirmed-pairs"
Pair = tuple[str, tuple[ToolId, ...]]
Confirmed = tuple[np.ndarray, list[Pair]]


def read(folder: Path, extras: Mapping[str, Entry]) -> Confirmed | None:
    """What was confirmed so far; None: nothing."""
    if not extras:
        return None
    keys = get_array(folder, extras[KEYS])
    try:
        lines = check(folder, extras[PAIRS]).read_bytes().split(b"\n")
        rows = [json.loads(line) for line in lines if line]
        pairs: list[Pair] = [(row["query"], tuple(row["tools"])) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise IndexBroken(f"{folder / extras[PAIRS].file} is damaged; build the index again") from error
    if len(keys) != len(pairs):
        raise IndexBroken(f"{folder / extras[PAIRS].file} does not fit its keys; build the index again")
    return keys, pairs


def checked(pairs: Sequence[tuple[str, Sequence[ToolId]]], known: Mapping[ToolId, object], index: Path) -> list[Pair]:
    """The pairs as they are kept: each query once, the last time it stands there."""
    found: dict[str, tuple[ToolId, ...]] = {}
    for query, tools in pairs:
        text = clean(query)
        if not text or not tools:
            raise BadInput("a confirmed query has words and at least one tool")
        strangers = [tool for tool in tools if tool not in known]
        if strangers:
            raise BadInput(f"nothing was confirmed: {unknown(index, strangers, known)}")
        found[text] = tuple(dict.fromkeys(tools))
    if not found:
        raise BadInput("there is nothing to confirm")
    return list(found.items())


def write(folder: Path, manifest: Manifest, kinds: Mapping[str, Kind], fresh: Sequence[Pair]) -> Manifest:
    """The manifest with the fresh pairs at every retriever that remembers. A query confirmed before is replaced."""
    parts = dict(manifest.retrievers)
    learners = {name: kind for name, kind in kinds.items() if isinstance(kind, LearnsFromFeedback)}
    if not learners:
        raise BadInput(f"no retriever of {folder} learns from confirmed queries; build one of kind masstool")
    again = {query for query, _ in fresh}
    for name, kind in learners.items():
        keys, pairs = kind.feedback_keys([query for query, _ in fresh]), list(fresh)
        before = read(folder, parts[name].extras)
        if before is not None:
            kept = [place for place, (query, _) in enumerate(before[1]) if query not in again]
            keys = np.concatenate([before[0][kept], keys])
            pairs = [*(before[1][place] for place in kept), *pairs]
        parts[name] = _stored(folder, name, parts[name], keys, pairs)
    return replace(manifest, retrievers=parts)


def _stored(folder: Path, name: str, part: Part, keys: np.ndarray, pairs: Sequence[Pair]) -> Part:
    lines = (json.dumps({"query": query, "tools": tools}, ensure_ascii=False) for query, tools in pairs)
    data = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
    extras = {
        KEYS: put_array(folder, f"{name}-{KEYS}", keys.astype(np.float32)),
        PAIRS: put_bytes(folder, f"{name}-{PAIRS}", "jsonl", data),
    }
    return replace(part, extras=extras)
