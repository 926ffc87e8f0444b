"""A tool in one line."""

from __future__ import annotations

import pytest

from pipelines.phrasing import NAMES, main_description, phrase
from retrievers.types import Parameter, Tool

FLIGHTS = Tool(
    "sky/searchFlights",
    "searchFlights",
    "Finds flights.\nCheap ones too.\nParameters: from (str)",
    (Parameter("from", "str"), Parameter("to", "str")),
    "Travel",
    "SkyFerry",
)
FLATTENED = Tool(
    "7",
    "Recipes: Suggest",
    "category_name:Food, tool_name:Recipes, api_description:Get suggestions, quickly, required_params: []",
    category="Food",
    provider="Recipes",
)


@pytest.mark.parametrize(
    ("phrasing", "line"),
    [
        ("name", "search Flights"),
        ("description", "Finds flights. Cheap ones too."),
        ("named", "search Flights: Finds flights. Cheap ones too."),
        ("path", "Travel | SkyFerry | search Flights: Finds flights. Cheap ones too."),
        ("parameters", "search Flights: Finds flights. Cheap ones too. (from, to)"),
    ],
)
def test_every_phrasing(phrasing: str, line: str) -> None:
    assert phrase(FLIGHTS, phrasing, 200) == line


def test_a_description_flattened_from_a_record_is_found_in_it() -> None:
    assert main_description(FLATTENED) == "Get suggestions, quickly"
    assert phrase(FLATTENED, "path", 200) == "Food | Recipes | Suggest: Get suggestions, quickly"
    assert phrase(FLATTENED, "named", 200) == "Recipes: Suggest: Get suggestions, quickly"


def test_lines_are_one_line_and_bounded(sample_tools: list[Tool]) -> None:
    for tool in [*sample_tools, Tool("x", "x")]:
        for name in NAMES:
            line = phrase(tool, name, 60)
            assert line
            assert "\n" not in line
            assert len(line) <= 60
