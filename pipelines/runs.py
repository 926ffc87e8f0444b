"""Run folders: command, machine, versions, and atomic writes."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from retrievers.errors import BadInput
from retrievers.files import disk_room

PACKAGES = ("toolrewrite", "torch", "transformers", "sentence-transformers", "bm25s", "numpy", "trl", "peft", "vllm")


def environment() -> dict[str, Any]:
    """Versions, commit and machine."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores{_gpu()}",
        "python": platform.python_version(),
        "commit": _commit(),
        "versions": versions,
    }


def _gpu() -> str:
    torch = sys.modules.get("torch")  # only when the run itself used it
    if torch is None or not torch.cuda.is_available():
        return ""
    return f", {torch.cuda.get_device_name()}"


def _commit() -> str:
    """The commit of the code, with a + where it was changed since; "" outside a checkout."""
    here = Path(__file__).parent.parent
    if not (here / ".git").exists():
        return ""
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
        dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=here, capture_output=True, text=True)
    except OSError:
        return ""
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "") if head.returncode == 0 else ""


def check_output(folder: Path) -> None:
    """Refuse an output folder that cannot be written, before anything takes long."""
    whole = folder.absolute()
    existing = next(path for path in (whole, *whole.parents) if path.exists())
    if not existing.is_dir():
        raise BadInput(f"{existing} is a file; a run needs a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise BadInput(f"{existing} cannot be written to; name another output")


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write a run's files, each whole or not at all."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; a run needs a folder")
    encoded = {name: text.encode("utf-8") for name, text in files.items()}
    with disk_room(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in encoded.items():
            part = folder / f".part-{name}"
            try:
                part.write_bytes(data)
                os.replace(part, folder / name)
            finally:
                part.unlink(missing_ok=True)
        for stale in folder.glob("*.trec"):  # of a system that is no longer in the run
            if stale.name not in files:
                stale.unlink()


def as_json(value: Any) -> str:
    """Readable JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
