"""Decides which work of a stopped training run can be reused.

A work folder belongs to one training run. Each stage of the run notes a hash of everything its result depends on (model
fingerprint, settings, data) in run.json. A later run keeps the stages whose hash is the same and deletes the others.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from retrievers.errors import BadInput
from retrievers.files import LOCK

STATE = "run.json"


@dataclass(frozen=True, slots=True)
class WorkStage:
    """One stage of a training run."""

    name: str
    depends_on: Any
    """Everything the result depends on beyond the stages before it: JSON values, dataclasses, arrays."""
    files: tuple[str, ...]
    """Names of its files and folders in the work folder; may contain `*`."""


def reuse_work(work: Path, stages: Sequence[WorkStage], shared: Collection[str] = ()) -> None:
    """Delete the first stage that differs from the stopped run and all after it; keep the rest.

    `shared`: files in the folder that are checked elsewhere. A folder with any other file is refused.
    """
    work.mkdir(parents=True, exist_ok=True)
    hashes = _chained_hashes(stages)
    stored = _stored_hashes(work / STATE)
    if stored == hashes:
        return
    names = {STATE, f"{STATE}.part", LOCK, *shared}
    paths = {stage.name: _matching(work, stage.files) for stage in stages}
    known = names.union(*([path.name for path in stage_paths] for stage_paths in paths.values()))
    foreign = sorted(path.name for path in work.iterdir() if path.name not in known)
    if foreign:
        raise BadInput(f"{work} holds other files ({foreign[0]}); it is the work folder of the training, empty it")
    for name, stage_paths in paths.items():
        for path in stage_paths if stored.get(name) != hashes[name] else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    # Last and whole: a run killed before this line deletes the same stages again.
    part = work / f"{STATE}.part"
    part.write_text(json.dumps(hashes))
    os.replace(part, work / STATE)


def content_hash(value: Any) -> str:
    """SHA-256 of JSON values, dataclasses and arrays, however nested."""
    return hashlib.sha256(json.dumps(value, default=_jsonable).encode()).hexdigest()


def _jsonable(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value)
        return [str(data.dtype), data.shape, hashlib.sha256(data.tobytes()).hexdigest()]
    raise TypeError(f"{type(value).__name__} cannot be hashed by content")


def _chained_hashes(stages: Sequence[WorkStage]) -> dict[str, str]:
    """A hash per stage that covers the stages before it too."""
    hashes: dict[str, str] = {}
    before = ""
    for stage in stages:
        before = hashes[stage.name] = content_hash([before, stage.depends_on])
    return hashes


def _stored_hashes(path: Path) -> Mapping[str, str]:
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}


def _matching(work: Path, patterns: Collection[str]) -> list[Path]:
    return [path for path in work.iterdir() if any(fnmatch(path.name, pattern) for pattern in patterns)]
