"""Woven codes beside a training under way: a killed run goes on with the codes that its weights have learned."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from retrievers.files import disk_room
from retrievers.out_of_memory import report_out_of_memory
from retrievers.weaver.co_usage import Usage
from retrievers.weaver.code_assignment import Weave, Woven
from retrievers.weaver.settings import WeaveSettings

PATHS = "paths"


def key(settings: WeaveSettings, encoder: str, texts: Sequence[str], usage: Usage) -> str:
    """What the codes depend on."""
    digest = hashlib.sha256(json.dumps([asdict(settings), encoder, list(texts)]).encode())
    for array in (usage.pairs, usage.weights):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def write(path: Path, mark: str, woven: Woven) -> None:
    """Whole or not at all."""
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(array) for name, array in woven.weave.state.items()}
    with disk_room(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        save_file(
            {**arrays, PATHS: np.array(woven.paths, dtype=np.int64)},
            part,
            {"key": mark, "facts": json.dumps(woven.facts)},
        )
        os.replace(part, path)


def read(path: Path, mark: str) -> Woven | None:
    """The codes of that key, where they are there."""
    from safetensors import SafetensorError, safe_open

    try:
        with report_out_of_memory(path), safe_open(path, "np") as file:
            facts = file.metadata() or {}
            if facts.get("key") != mark:
                return None
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except (OSError, SafetensorError):
        return None
    paths = [tuple(row) for row in arrays.pop(PATHS).tolist()]
    return Woven(Weave(arrays), paths, json.loads(facts["facts"]))
