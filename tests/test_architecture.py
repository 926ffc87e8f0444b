"""Directions of imports, sizes of folders and files, unique class names, and what a mere import must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from paths import ROOT

ROOMS = ("retrievers", "rewrite", "reward", "pipelines")
LAYERS: dict[str, tuple[str, ...]] = {
    "retrievers": (
        "types errors",
        "base text language rows files settings out_of_memory progress",
        "training_set work_folder",
        "kind",
        "catalogue fusion lint calibration",
        "lexical dense hybrid",
        "masstool generative rerank",
        "weaver",
        "registry",
        "index",
        "trust",
    ),
    "rewrite": (
        "types errors rules",
        "settings",
        "template speedups",
        "backends",
        "votes folder",
        "rewriter merge",
        "sft",
        "align",
    ),
    "reward": ("metrics language", "base", "lists terms", "retrieval"),
    "pipelines": (
        "renamed_keys exit_codes models legal_names report shipped",
        "config runs vllm_engine",
        "context database",
        "data",
        "phrasing detection calibration",
        "rewriters held_out rerank",
        "search system_description",
        "index",
        "evaluate",
        "train",
        "serve batch renew agent",
        "cli",
    ),
    "pipelines/serve": (
        "errors metrics tracing log_writer index_config bounds",
        "bounds.fairness",
        "schemas batcher rewriter.settings calls.settings",
        "settings formats search_jobs",
        "bounds.costs bounds.places",
        "keys catalogue rewriter",
        "results calls",
        "reranking answers",
        "service",
        "gateway",
        "http",
        "page mcp",
        "app",
        "server",
    ),
}
"""Per folder, from the floor up: a name imports names of the layers below it, never a neighbour of its own layer."""
HEAVY = ("torch", "transformers", "sentence_transformers", "trl", "peft", "datasets", "vllm", "ray", "fastapi", "faiss")
MAX_FILES = 16


def files(*tops: str) -> list[Path]:
    return sorted(path for top in tops for path in (ROOT / top).rglob("*.py"))


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module(path): path for path in files(*ROOMS)}


@cache
def imports(name: str) -> frozenset[str]:
    """Modules of ours that a module imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(modules()[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{name}: relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    known = {part if part in modules() else part.rpartition(".")[0] for part in names}
    return frozenset(known & modules().keys() - {name})


def test_rooms_import_only_what_they_may() -> None:
    allowed = {"retrievers": set(), "rewrite": set(), "reward": {"retrievers"}, "pipelines": set(ROOMS)}
    wrong = [
        f"{name} imports {other}"
        for name in modules()
        for other in imports(name)
        if other.partition(".")[0] not in {name.partition(".")[0], *allowed[name.partition(".")[0]]}
    ]
    assert wrong == []


def layer_of(name: str, layers: tuple[str, ...]) -> tuple[int, str] | None:
    """The layer of a module below a folder, and the word that names it there: the longest one that fits."""
    fits = [
        (len(word), number, word)
        for number, layer in enumerate(layers)
        for word in layer.split()
        if name == word or name.startswith(f"{word}.")
    ]
    return max(fits)[1:] if fits else None


@pytest.mark.parametrize("folder", LAYERS)
def test_imports_run_one_way_between_folders(folder: str) -> None:
    top, layers, wrong = folder.replace("/", ".") + ".", LAYERS[folder], []
    for name in modules():
        if not name.startswith(top):
            continue
        mine = layer_of(name.removeprefix(top), layers)
        if mine is None:
            wrong.append(f"{name} has no layer in {folder}")
            continue
        for other in imports(name):
            theirs = layer_of(other.removeprefix(top), layers) if other.startswith(top) else None
            if theirs and theirs[1] != mine[1] and theirs[0] >= mine[0]:
                wrong.append(f"{name} imports {other}")
    assert wrong == []


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """What is left when everything that imports nothing of the rest is taken away, again and again."""
    rest = {name: set(others) for name, others in graph.items()}
    while True:
        free = {name for name, others in rest.items() if not others & rest.keys()}
        if not free:
            return sorted(rest)
        rest = {name: others for name, others in rest.items() if name not in free}


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert cycle({name: set(imports(name)) for name in modules()}) == []
    benchmarks = {path.stem: path for path in files("benchmarks")}
    graph = {
        name: {
            word
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for word in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        & benchmarks.keys() - {name}
        for name, path in benchmarks.items()
    }
    assert cycle(graph) == []


def test_class_names_occur_once() -> None:
    counts = Counter(
        node.name
        for path in files(*ROOMS, "benchmarks")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert {name: count for name, count in counts.items() if count > 1} == {}


def test_the_core_imports_without_heavy_libraries() -> None:
    core = "pipelines.cli.main, pipelines.config, pipelines.index.build, pipelines.search, retrievers.catalogue"
    code = f"import sys, toolrewrite, {core}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_server_starts_without_the_mcp_library_and_without_a_client_of_model_servers() -> None:
    code = "import sys, pipelines.serve.server; print([m for m in ('mcp', 'mcp_types', 'aiohttp') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_folders_and_files_are_small() -> None:
    for path in files(*ROOMS):
        assert path.stem not in {"utils", "util", "common", "helpers", "misc"}, path
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 300, f"{path} is too long to hold in the head"
    sizes = Counter(str(path.parent.relative_to(ROOT)) for path in files(*ROOMS) if path.stem != "__init__")
    assert {folder: size for folder, size in sizes.items() if size > MAX_FILES} == {}
