"""The release checklist, run by `make release-check`: every item is checked, and what is open is named.

By hand remains: clone into an empty folder, `make setup`, `make demo`, `make test`, and follow README and tutorial.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

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
    """The wheel holds configs, templates, sample, page, encoder and licence, and no tests."""
    leftovers = [ROOT / "build", ROOT / f"{project()['name']}.egg-info"]
    leftovers = [path for path in leftovers if not path.exists()]  # of an earlier build, or of `make setup`
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
        done = subprocess.run([*pip, "--wheel-dir", folder, str(ROOT)], capture_output=True, text=True)
        for path in leftovers:
            shutil.rmtree(path, ignore_errors=True)
        if done.returncode:
            yield f"the wheel cannot be built: {done.stderr.strip().splitlines()[-1]}"
            return
        [wheel] = Path(folder).glob("*.whl")
        yield from wheel_problems(wheel)


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
    """Every run of configs/expected.yaml has a command whose configs exist, queries and figures."""
    runs = yaml.safe_load((ROOT / "configs/expected.yaml").read_text(encoding="utf-8"))["runs"]
    for name, run in runs.items():
        if missing := [key for key in ("command", "queries", "systems") if not run.get(key)]:
            yield f"configs/expected.yaml: {name} has no {missing[0]}"
        for path in re.findall(r"\bconfigs/[\w/.-]+\.yaml", run.get("command", "")):
            if not (ROOT / path).exists():
                yield f"configs/expected.yaml: {name} names {path}, which does not exist"


CHECKS: dict[str, Callable[[], Iterator[str]]] = {
    "version and licence": check_version,
    "changelog": check_changelog,
    "date": check_date,
    "wheel": check_wheel,
    "docs": check_docs,
    "licences of dependencies": check_licences,
    "expected figures": check_figures,
}


def main() -> int:
    """Print the list; 1 if something is open."""
    open_items = 0
    for name, check in CHECKS.items():
        problems = list(check())
        open_items += len(problems)
        sys.stdout.write(f"[{' ' if problems else 'x'}] {name}\n" + "".join(f"      {line}\n" for line in problems))
        sys.stdout.flush()
    return 1 if open_items else 0


if __name__ == "__main__":
    sys.exit(main())
