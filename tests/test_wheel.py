"""The wheel holds everything that the README uses: in a new environment its commands work in an empty folder.

The new environment sees the libraries of this one, so that nothing is downloaded: a dependency that pyproject.toml
forgets is found by `make release-check`, which installs the wheel into an empty environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from killing import started
from paths import ROOT

from pipelines.cli.main import PARSERS

SOURCES = ("rewrite", "reward", "retrievers", "pipelines", "configs", "toolrewrite.py", "pyproject.toml")
TEXTS = ("README.md", "LICENSE")
EXAMPLE = "docs/examples/leisure-openapi.yaml"
PROGRAM = """
from pathlib import Path
import sys, toolrewrite
assert "numpy" not in sys.modules, "importing the interface must cost nothing"
from toolrewrite import Index, ToolSearch, best_retriever, make_context

assert Path(toolrewrite.__file__).is_relative_to(sys.argv[1])
index = Index(Path("runs/mine/index"), make_context("cpu"))
search = ToolSearch(index, best_retriever(index))
print(search.search(["free swimming lanes"], k=3)[0].ids)
"""
COAT = "will I need a coat tonight"
Run = Callable[..., str]


def program(site: Path, name: str) -> str:
    """A command of the environment with the wheel."""
    return str(site.parents[2] / "bin" / name)


def wheel_environment(folder: Path) -> dict[str, str]:
    """Variables under which nothing of this repository is found."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "TOOLREWRITE_CACHE": str(folder / "cache")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the sources, installed into a new environment, which sees the libraries of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source" / EXAMPLE).parent.mkdir(parents=True)
    for name in (*SOURCES, *TEXTS, EXAMPLE):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        options = {"symlinks": True, "ignore": shutil.ignore_patterns("__pycache__")} if (ROOT / name).is_dir() else {}
        copy(ROOT / name, folder / "source" / name, **options)  # type: ignore[operator]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    offline = ["--no-deps", "--no-index"]
    build = [*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "source")]
    subprocess.run(build, check=True)
    [wheel] = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    [site] = (folder / "venv").glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))  # its own .pth files are not read, nor this code
    into = ["--python", str(folder / "venv/bin/python"), "install"]
    subprocess.run([*pip, *into, *offline, "--ignore-installed", str(wheel)], check=True)  # one is seen already
    shutil.rmtree(folder / "source")
    return site


@pytest.fixture(scope="module")
def run(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a command of the wheel in an empty folder; returns its output."""
    folder = tmp_path_factory.mktemp("empty")
    shutil.copy(ROOT / EXAMPLE, folder / "my-openapi.yaml")
    environment = wheel_environment(folder)

    def command(name: str, *words: str) -> str:
        done = subprocess.run(
            [program(site, name), *words], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return command


def test_every_config_ships(site: Path) -> None:
    wanted = {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.yaml")}
    shipped = site / "pipelines" / "configs"
    assert {path.relative_to(shipped) for path in shipped.rglob("*.yaml")} == wanted
    assert not shipped.is_symlink()


@pytest.mark.parametrize("command", PARSERS)
def test_every_command_prints_its_version(run: Run, command: str) -> None:
    assert run(command, "--version") == f"{command} 0.1.0\n"


def test_the_readme_works_in_an_empty_folder(run: Run, site: Path) -> None:
    assert "14 tools" in run("rewrite-index", "lint", "my-openapi.yaml")
    words = ("build", "configs/index/tutorial.yaml", "--set", "retrievers={bm25: {kind: bm25}}")  # no model to load
    assert "runs/mine/index: 14 tools" in run("rewrite-index", *words, "--set", "catalogue=my-openapi.yaml")
    assert "leisure/laneAvailability" in run("rewrite-index", "search", "runs/mine/index", "free swimming lanes")
    assert "leisure/laneAvailability" in run("python", "-c", PROGRAM, str(site))
    assert "masstool" in run("rewrite-index", "search", "bundled:sample", COAT)


def test_the_example_of_the_config_ships(run: Run) -> None:
    words = ("configs/index/tutorial.yaml", "--set", "index=runs/example", "--set", "retrievers={bm25: {kind: bm25}}")
    assert "runs/example: 14 tools" in run("rewrite-index", "build", *words)
    assert "14 tools" in run("rewrite-index", "lint", EXAMPLE)


def test_the_server_finds_the_sample_and_starts(site: Path, tmp_path: Path) -> None:
    command = [program(site, "rewrite-serve"), "--set", "port=0"]
    with started(command, cwd=tmp_path, env=wheel_environment(tmp_path), text=True, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert ", 224 tools, masstool, " in line
        url = line.split()[1].rstrip(",")
        assert "<title>toolrewrite</title>" in httpx.get(url, trust_env=False).text
        found = httpx.post(f"{url}/v1/search", json={"utterance": COAT}, trust_env=False, timeout=60).json()
        assert found["results"][0]["tools"][0]["id"] == "nimbus_ledger/v2/forecast/hourly"


@pytest.mark.parametrize(
    "words",
    [
        ("rewrite-eval", "configs/eval/sample.yaml"),
        ("rewrite-train", "targets", "configs/targets/sample.yaml"),
        ("rewrite-batch", "in.jsonl", "out.jsonl", "--config", "configs/batch/sample.yaml"),
        ("rewrite-serve",),
    ],
    ids=lambda words: words[0],
)
def test_configs_are_found_in_the_package(run: Run, words: tuple[str, ...]) -> None:
    assert "index: " in run(*words, "--dry-run")
