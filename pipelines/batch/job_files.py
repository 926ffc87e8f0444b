"""Files of a job, and the check that a resumed job is the same one: the manifest is written before it starts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from retrievers.errors import BadInput
from retrievers.files import sync_folder, writer_lock

FORMAT = 2
_NAMES = {
    "input.sha256": "input",
    "rewriter.fingerprint": "model (rewriter.fingerprint)",
    "index.fingerprint": "state of the index",
    "format": "version of this program (format)",
}


@dataclass(frozen=True, slots=True)
class JobPaths:
    """The paths that a job writes."""

    output: Path

    @property
    def work(self) -> Path:
        """The folder of a running job."""
        return self.output.with_name(f"{self.output.name}.work")

    @property
    def manifest(self) -> Path:
        return self.work / "manifest.json"

    @property
    def errors(self) -> Path:
        """The bad rows."""
        return self.output.with_name(f"{self.output.name}.errors.jsonl")

    @property
    def record(self) -> Path:
        """Identity and summary of the finished job."""
        return self.output.with_name(f"{self.output.name}.batch.json")

    def clear(self) -> None:
        """Remove the job and its output."""
        with writer_lock(self.work, 0):
            for path in (self.record, self.errors, self.output):
                path.unlink(missing_ok=True)
            shutil.rmtree(self.work, ignore_errors=True)


@contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that replaces another once it is whole and on the disk."""
    part = path.with_name(f".part-{path.name}")
    try:
        with part.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, facts: Mapping[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    with replace_file(path) as stream:
        stream.write(json.dumps(facts, indent=1, ensure_ascii=False).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is none."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def check_same_job(before: Mapping[str, Any], now: Mapping[str, Any], name: str, may_differ: tuple[str, ...]) -> None:
    """Refuse to resume a job that was begun otherwise, naming the first difference."""
    old, new = _flat(before), _flat(now)
    for key in sorted(old.keys() | new.keys()):
        if key not in may_differ and old.get(key) != new.get(key):
            raise BadInput(
                f"{name} was begun with another {_NAMES.get(key, key)}: it was {_short(old.get(key))} and is "
                f"{_short(new.get(key))} now; restore it, choose another output, or begin again with --fresh"
            )


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def _short(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"
