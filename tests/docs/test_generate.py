"""The generated reference: every key, every command, every file."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Interval
from paths import ROOT


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    return module


@dataclasses.dataclass(frozen=True)
class Inner:
    """Inner settings."""

    kind: Literal["inner"]
    rate: Annotated[float, Interval(gt=0, le=1)] = 0.5
    """The rate."""


@dataclasses.dataclass(frozen=True)
class Outer(Inner):
    epochs: Annotated[int, Ge(1)] = 8
    """Passes over
    the data | all of it."""
    inner: Inner | None = None
    names: tuple[str, ...] = ("a",)


def test_types_ranges_defaults_and_docstrings(generate: ModuleType) -> None:
    texts = generate.attribute_docstrings(Outer)
    assert texts == {"rate": "The rate.", "epochs": "Passes over\nthe data | all of it."}
    section = "\n".join(generate.section(Outer))
    assert "| `rate` | number > 0 and ≤ 1 | `0.5` | The rate. |" in section
    assert "| `epochs` | integer ≥ 1 | `8` | Passes over the data \\| all of it. |" in section
    assert "| `kind` | `inner` | **required** |  |" in section
    assert "[Inner](#inner-kind-inner) or null" in section
    assert "| `names` | list of text | `['a']` |" in section


def test_every_key_is_in_the_config_reference(generate: ModuleType) -> None:
    reference = generate.config_reference()
    for kind in generate.config_kinds().values():
        for group in generate.reachable(kind):
            for field in dataclasses.fields(group):
                assert f"| `{field.name}` |" in reference
    headings = [line for line in reference.split("\n") if line.startswith("#")]
    assert len(headings) == len(set(headings))


def test_every_command_and_flag_is_in_the_command_reference(generate: ModuleType) -> None:
    reference = generate.command_reference()
    parsers = list(generate.commands())
    assert len(parsers) > 25
    for parser in parsers:
        assert f"## {parser.prog}\n" in reference
        for action in parser._actions:
            if action.option_strings and not isinstance(action, argparse._HelpAction):
                assert action.option_strings[0] in reference


def test_every_file_is_listed_with_its_docstring(generate: ModuleType) -> None:
    rows = [line for line in generate.file_list().split("\n") if line.startswith("| `")]
    files = [path for room in generate.ROOMS for path in (ROOT / room).rglob("*.py") if path.name != "__init__.py"]
    assert len(rows) == len(files)
    assert all(row.split("|")[2].strip() for row in rows)
