"""Which room may know which, and what must not be loaded by a mere import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT: dict[str, set[str]] = {
    "retrievers": set(),
    "rewrite": set(),
    "reward": {"retrievers"},
    "pipelines": {"retrievers", "rewrite", "reward"},
}
HEAVY = ("torch", "transformers", "sentence_transformers", "trl", "peft", "datasets", "vllm", "ray", "fastapi", "faiss")


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_know_only_whom_they_may(room: str) -> None:
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        strangers = imported(path) & (MAY_IMPORT.keys() - MAY_IMPORT[room] - {room})
        assert not strangers, f"{path} imports {strangers}"


def test_the_core_imports_without_heavy_libraries() -> None:
    modules = "pipelines.cli.main, pipelines.config, pipelines.index.build, pipelines.search, retrievers.catalogue"
    code = f"import sys, {modules}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_drawers_and_no_giants() -> None:
    for room in MAY_IMPORT:
        for path in (ROOT / room).rglob("*.py"):
            assert path.stem not in {"utils", "util", "common", "helpers", "misc"}, path
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 300, f"{path} is too long to hold in the head"
