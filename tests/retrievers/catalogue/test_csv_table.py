from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from retrievers.catalogue import read_catalogue
from retrievers.errors import BadInput
from retrievers.types import Parameter, Tool


def write(folder: Path, text: str) -> Path:
    path = folder / "tools.csv"
    path.write_bytes(text.encode("utf-8"))
    return path


def test_a_full_table(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "\ufeffID, Name,description,category,provider,parameters\r\n"
        '7,book_table," Book a table,\r\nor two. ",Food,Diners,city; seats ;\r\n'
        "\r\n"
        ",cancel,,,,\r\n"
        "9,short\r\n",
    )
    assert read_catalogue(path) == [
        Tool("7", "book_table", "Book a table,\r\nor two.", (Parameter("city"), Parameter("seats")), "Food", "Diners"),
        Tool("cancel", "cancel"),
        Tool("9", "short"),
    ]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators(tmp_path: Path, separator: str) -> None:
    path = write(tmp_path, separator.join(("name", "description")) + "\n" + separator.join(("a", "b, c")) + "\n")
    assert read_catalogue(path) == [Tool("a", "a", "b, c")]


def test_parameters_as_json(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    listed = ["a", {"name": "b", "type": "string", "description": "B", "required": True}]
    path = tmp_path / "tools.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerows([("name", "parameters"), ("x", json.dumps(schema)), ("y", json.dumps(listed)), ("z", "{}")])
    x, y, z = read_catalogue(path)
    assert (x.parameters, json.loads(x.schema)) == ((Parameter("n", "integer", "", True),), schema)
    assert (y.parameters, y.schema) == ((Parameter("a"), Parameter("b", "string", "B", True)), "")
    assert (z.parameters, z.schema) == ((), "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name,descripton\na,b\n", "line 1: unknown column 'descripton', the nearest known one is 'description';"),
        ("name,\na,b\n", "line 1: unknown column ''"),
        ("name,name\n", "line 1: the column 'name' is given twice"),
        ("id,description\n", "line 1: no column 'name'"),
        ("", "line 1: no header"),
        ("name\n", "holds no tools"),
        ("id,name\n1,\n", "line 2: 'name' is missing or blank"),
        ('name\na\n"b\nc\n', "line 3: broken CSV, unexpected end of data"),
        ('name,id\n"x\ny",1\n"b"c,2\n', "line 4: broken CSV"),
        ("name\na,b\n", "line 2: 2 cells under 1 columns"),
        ('name,description\n"a\n1",x\nb,\n"a\n1",y\n', "line 5: the id 'a\\n1' is already taken at"),
        ("name,parameters\na,[1]\n", "line 2, parameters: expected an object, found a number"),
        ("name,parameters\na,[\n", "line 2: broken JSON in 'parameters'"),
        ('name,parameters\na,"{""city"": ""string""}"\n', "line 2: the object in 'parameters' is no JSON Schema"),
        ('name,parameters\na,"[{""name"": ""b"", ""required"": ""yes""}]"\n', "'required' has to be true or false"),
        (f"name\n{'x' * 200_000}\n", "line 2: broken CSV, field larger than field limit"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        read_catalogue(path, "csv")
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_duplicate_names_the_first_line_too(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"line 4: the id 'a' is already taken at .*line 2;"):
        read_catalogue(write(tmp_path, "name\na\nb\na\n"))


def test_nul_bytes_are_harmless(tmp_path: Path) -> None:
    assert read_catalogue(write(tmp_path, "name,description\na\0,b\0c\n")) == [Tool("a", "a", "b c")]
