"""The release checklist, run by `make release-check`: what is wrong is named, and what is left to do at the release.

It takes some minutes and downloads packages. By hand remain `make lower-ends`, and in a clone in an empty folder `make
setup`, `make demo`, `make test`, README and tutorial.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import fresh_install
import yaml

ROOT = Path(__file__).resolve().parents[1]
LICENCES = re.compile(
    r"apache|mit\b|bsd|lgpl|isc\b|mpl|mozilla|python software|psf|unlicense|historical permission", re.I
)
"""Licences that go together with Apache-2.0 for a library that is only imported."""
SHIPPED = {
    "configs": ("configs", "pipelines/configs", "*.yaml"),
    "templates": ("rewrite/templates", "rewrite/templates", "*.yaml"),
    "the sample": ("pipelines/data/sample", "pipelines/data/sample", "*"),
    "the page": ("pipelines/serve/page/assets", "pipelines/serve/page/assets", "*"),
    "the example": ("docs/examples", "pipelines/data", "*.yaml"),
    "the encoders": ("pipelines/encoders", "pipelines/encoders", "*"),
}
"""Contents of a wheel: name -> folder here, folder there, pattern."""


def project() -> dict[str, Any]:
    """The table [project] of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def check_version() -> Iterator[str]:
    """Version and licence are the same everywhere."""
    facts, citation = project(), yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    for ours, theirs in (("version", "version"), ("license", "license"), ("keywords", "keywords")):
        if facts[ours] != citation[theirs]:
            yield f"CITATION.cff has {theirs} {citation[theirs]}, pyproject.toml {facts[ours]}"
    if "Apache License" not in (ROOT / "LICENSE").read_text(encoding="utf-8"):
        yield "LICENSE is not the Apache License that pyproject.toml names"


def check_changelog() -> Iterator[str]:
    """The changelog has a section of this version that says something."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## \[([^\]]+)\][^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    version = project()["version"]
    if not sections.get(version, "").strip():
        yield f"CHANGELOG.md has no section [{version}]"
    if sections.get("Unreleased", "").strip():
        yield f"CHANGELOG.md: move what is under [Unreleased] to [{version}]"


def check_date() -> Iterator[str]:
    """The section of this version has a date."""
    version = re.escape(project()["version"])
    if not re.search(rf"^## \[{version}\] - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M):
        yield f"CHANGELOG.md: give [{project()['version']}] the date of the release"


def check_wheel() -> Iterator[str]:
    """The wheel holds configs, templates, sample, page, example, encoders and licence, and no tests."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield from wheel_problems(fresh_install.build_wheel(Path(folder)))
        except subprocess.CalledProcessError as error:
            yield f"the wheel cannot be built: {error.stderr.strip().splitlines()[-1]}"


def wheel_problems(wheel: Path) -> Iterator[str]:
    """Find what a wheel lacks, or should not hold."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for what, (here, there, pattern) in SHIPPED.items():
        files = [path for path in (ROOT / here).rglob(pattern) if path.is_file() and "__pycache__" not in path.parts]
        missing = [path for path in files if f"{there}/{path.relative_to(ROOT / here).as_posix()}" not in names]
        if missing:
            yield f"the wheel lacks {what}: {missing[0].name} and {len(missing) - 1} more"
    if not any(name.endswith("LICENSE") for name in names):
        yield "the wheel lacks LICENSE"
    if stray := [name for name in sorted(names) if name.startswith(("tests/", "docs/", "benchmarks/", "runs/"))]:
        yield f"the wheel holds {stray[0]}"


def check_empty_environment() -> Iterator[str]:
    """The wheel with its search and serving extras works in an empty environment, and brings no PyTorch."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            fresh_install.make_environment(folder)
            fresh_install.install(folder, f"{fresh_install.build_wheel(folder)}[serve,multilingual]")
            tools = fresh_install.ask_server(folder)
        except (subprocess.CalledProcessError, OSError, RuntimeError) as error:
            yield f"an empty environment: {error}"
            return
        if fresh_install.TOOL not in tools:
            yield f"an empty environment: {fresh_install.REQUEST!r} finds {tools}, not {fresh_install.TOOL}"
        if list(folder.glob("venv/lib/python*/site-packages/torch")):
            yield "an empty environment: the extras serve and multilingual bring torch"


def check_docs() -> Iterator[str]:
    """The site builds without a warning: pages, links and anchors exist."""
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
        done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        yield f"the site does not build: {(done.stdout + done.stderr).strip().splitlines()[0]}"


def check_licences() -> Iterator[str]:
    """Every dependency that is installed has a licence that goes together with ours."""
    facts = project()
    wanted = [*facts["dependencies"], *(line for extra in facts["optional-dependencies"].values() for line in extra)]
    for name in sorted({re.split(r"[\s\[<>=!~;]", line, maxsplit=1)[0] for line in wanted}):
        try:
            package = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue
        kinds = [line for line in package.get_all("Classifier") or [] if line.startswith("License")]
        texts = [package.get("License-Expression") or "", (package.get("License") or "")[:200], *kinds]
        if name != facts["name"] and not LICENCES.search(" ".join(texts)):
            yield f"{name}: read its licence ({' '.join(' '.join(texts).split())[:60] or 'none is named'})"


def check_figures() -> Iterator[str]:
    """Every run of configs/expected.yaml has a command whose configs exist, queries, and some figures.

    The figures are not measured here: that takes GPUs and hours, and `rewrite-eval --check` compares them.
    """
    runs = yaml.safe_load((ROOT / "configs/expected.yaml").read_text(encoding="utf-8"))["runs"]
    for name, run in runs.items():
        if missing := [key for key in ("command", "queries", "systems") if not run.get(key)]:
            yield f"configs/expected.yaml: {name} has no {missing[0]}"
        for path in re.findall(r"\bconfigs/[\w/.-]+\.yaml", run.get("command", "")):
            if not (ROOT / path).exists():
                yield f"configs/expected.yaml: {name} names {path}, which does not exist"


def check_demo() -> Iterator[str]:
    """The figures of `make demo`, measured once more, are those of configs/expected.yaml."""
    with tempfile.TemporaryDirectory() as folder:
        for line in (
            "rewrite-index build configs/index/demo.yaml",
            "rewrite-eval configs/eval/demo.yaml",
            "rewrite-eval --check configs/expected.yaml --run runs/demo",
        ):
            name, *words = line.split()
            command = [str(Path(sys.executable).with_name(name)), *words]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                yield f"{line}: {' '.join((done.stdout + done.stderr).split())[-300:]}"
                return


CHECKS: dict[str, Callable[[], Iterator[str]]] = {
    "version and licence": check_version,
    "changelog": check_changelog,
    "wheel": check_wheel,
    "empty environment": check_empty_environment,
    "docs": check_docs,
    "licences of dependencies": check_licences,
    "list of expected figures": check_figures,
    "figures of the demo": check_demo,
}
TO_DO: dict[str, Callable[[], Iterator[str]]] = {"date": check_date}
"""Left open until the day of the release."""


def main() -> int:
    """Print the list; 1 if something is wrong or left to do."""
    wrong = sum(report(name, check) for name, check in CHECKS.items())
    left = sum(report(name, check) for name, check in TO_DO.items())
    sys.stdout.write(f"wrong: {wrong}; left to do at the release: {left}\n")
    return 1 if wrong or left else 0


def report(name: str, check: Callable[[], Iterator[str]]) -> int:
    """Run a check and print its outcome; returns the number of problems."""
    problems = list(check())
    mark = "x" if not problems else "to do" if name in TO_DO else "wrong"
    sys.stdout.write(f"[{mark}] {name}\n" + "".join(f"      {line}\n" for line in problems))
    sys.stdout.flush()
    return len(problems)


if __name__ == "__main__":
    sys.exit(main())
