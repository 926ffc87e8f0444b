from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retrievers.catalogue import read_catalogue
from retrievers.errors import BadInput
from retrievers.types import Parameter, Tool

BAKERY: dict[str, Any] = {
    "tool_name": "Bakery Finder",
    "tool_description": "Everything about bread.",
    "title": "bakery finder",
    "api_list": [
        {
            "name": "Nearest",
            "url": "https://bakery.example/nearest",
            "description": "Nearest open bakery ",
            "method": "GET",
            "required_parameters": [{"name": "town", "type": "STRING", "description": None, "default": "Bergen"}],
            "optional_parameters": [{"name": "radius", "type": "NUMBER", "description": "km", "default": 3}],
        },
        {"name": "Loaves", "description": "", "required_parameters": [], "optional_parameters": None},
    ],
}
NEAREST = (Parameter("town", "string", "", True), Parameter("radius", "number", "km"))


def write(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), "utf-8")
    return path


def test_a_file_gives_a_tool_for_each_api(tmp_path: Path) -> None:
    path = write(tmp_path / "bakery.json", {**BAKERY, "category": "Food"})
    assert read_catalogue(path) == [
        Tool(
            "Food/Bakery Finder/Nearest",
            "Nearest",
            "Nearest open bakery\nEverything about bread.",
            NEAREST,
            "Food",
            "Bakery Finder",
        ),
        Tool("Food/Bakery Finder/Loaves", "Loaves", "Everything about bread.", (), "Food", "Bakery Finder"),
    ]


def test_a_folder_names_the_category(tmp_path: Path) -> None:
    write(tmp_path / "tools" / "Travel" / "b.json", {**BAKERY, "tool_name": "Trains"})
    write(tmp_path / "tools" / "Food" / "a.json", BAKERY)
    (tmp_path / "tools" / "Food" / "a").mkdir()
    (tmp_path / "tools" / "Food" / "a" / "api.py").write_text("not ours")
    tools = read_catalogue(tmp_path / "tools")
    assert [tool.id for tool in tools] == [
        "Food/Bakery Finder/Nearest",
        "Food/Bakery Finder/Loaves",
        "Travel/Trains/Nearest",
        "Travel/Trains/Loaves",
    ]
    assert [tool.category for tool in read_catalogue(tmp_path / "tools" / "Food")] == ["Food", "Food"]


def test_a_lone_file_has_no_category(tmp_path: Path) -> None:
    assert read_catalogue(write(tmp_path / "x.json", BAKERY))[0].id == "Bakery Finder/Nearest"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tool_name": None, "title": ""}, "'tool_name' is missing or blank"),
        ({"tool_name": 3}, "'tool_name' has to be text, found a number"),
        ({"api_list": {}}, "'api_list' has to be a list, found an object"),
        ({"api_list": []}, "holds no tools"),
        ({"api_list": [4]}, "api_list[0]: expected an object"),
        ({"api_list": [{"name": " "}]}, "api_list[0]: 'name' is missing or blank"),
        ({"api_list": [{"name": "a", "required_parameters": {}}]}, "api_list[0]: 'required_parameters' has to be"),
        (
            {"api_list": [{"name": "a", "optional_parameters": [{"type": "STRING"}]}]},
            "api_list[0], optional_parameters[0]: 'name' is missing",
        ),
        ({"api_list": [{"name": "a"}, {"name": "a"}]}, "api_list[1]: the id 'Bakery Finder/a' is already taken at"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = write(tmp_path / "x.json", {**BAKERY, **change})
    with pytest.raises(BadInput) as caught:
        read_catalogue(path, "toolbench")
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_bad_file_in_a_tree_is_named(tmp_path: Path) -> None:
    write(tmp_path / "Food" / "a.json", BAKERY)
    broken = tmp_path / "Food" / "b.json"
    broken.write_text('{"tool_name":\n')
    with pytest.raises(BadInput, match=r"b\.json, line 2: broken JSON"):
        read_catalogue(tmp_path)
    write(broken, {"tool_name": "x"})
    with pytest.raises(BadInput, match=r"b\.json: no 'api_list'"):
        read_catalogue(tmp_path)
