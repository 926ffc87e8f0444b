"""Files of named parts with tensors of any library, and facts, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open

from retrievers.files import disk_room
from retrievers.out_of_memory import report_out_of_memory

Value = TypeVar("Value")


def write_tensors(
    path: Path,
    parts: Mapping[str, Mapping[str, Value]],
    facts: Mapping[str, Any],
    convert: Callable[[Value], Value],
    save: Callable[[dict[str, Value], Path, dict[str, str]], object],
) -> None:
    """Write parts and facts, durably. `save`: the library's `save_file`."""
    file = path.with_name(f"{path.name}.part")
    values = {f"{part}/{name}": convert(value) for part, own in parts.items() for name, value in own.items()}
    with disk_room(path.parent):
        save(values, file, {"facts": json.dumps(facts)})
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(file, path)


def read_tensors(
    path: Path, framework: str, convert: Callable[[Any], Value]
) -> tuple[dict[str, dict[str, Value]], dict[str, Any]] | None:
    """Read parts and facts; None where the file is missing or damaged. `framework`: the library as safetensors names
    it."""
    if not path.exists():
        return None
    try:
        with report_out_of_memory(path), safe_open(path, framework) as opened:
            parts: defaultdict[str, dict[str, Value]] = defaultdict(dict)
            for key in opened.keys():  # noqa: SIM118
                part, _, name = key.partition("/")
                parts[part][name] = convert(opened.get_tensor(key))
            return parts, json.loads((opened.metadata() or {})["facts"])
    except (SafetensorError, OSError, ValueError, KeyError):
        return None
