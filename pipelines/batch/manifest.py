"""What a job's outcome depends on, written down before it begins: the same command goes on, another one is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrievers.errors import BadInput
from retrievers.files import sync_folder

FORMAT = 1
MANIFEST = "manifest.json"


def write_json(path: Path, facts: Mapping[str, Any]) -> None:
    """Writes a file whole or not at all."""
    part = path.with_name(f".part-{path.name}")
    with part.open("wb") as stream:
        stream.write(json.dumps(facts, indent=1, ensure_ascii=False).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """What a file holds; None where there is none, or nothing of ours in it."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], name: str, free: tuple[str, ...] = ()) -> None:
    """Refuses to go on with a job that was begun otherwise, naming the first thing that is different.

    `free` may differ.
    """
    old, new = _flat(before), _flat(now)
    for key in sorted(old.keys() | new.keys()):
        if key in free or old.get(key) == new.get(key):
            continue
        told = _NAMES.get(key, key)
        values = f"it was {_short(old.get(key))} and is {_short(new.get(key))} now"
        raise BadInput(
            f"{name} was begun with another {told}: {values}; give it back as it was, choose another output, or begin "
            "anew with --fresh"
        )


_NAMES = {
    "input.sha256": "input",
    "rewriter.fingerprint": "model (rewriter.fingerprint)",
    "index.is": "state of the index",
    "format": "version of this program (format)",
}


def _flat(facts: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{at}{key}.")
        else:
            found[f"{at}{key}"] = list(value) if isinstance(value, tuple) else value
    return found


def _short(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"
