"""A table: a header with `name` and any of the other columns, one tool per row.

Separated by commas, semicolons or tabs, as in the header. Without an id the name is the id. Parameters are a JSON
Schema, a JSON list of names or of {name, type, description, required}, or plainly "city; unit; days".
"""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections.abc import Iterator, Mapping

from retrievers.catalogue.fields import as_object, kind, name_at, text_at, tidy
from retrievers.catalogue.schema import compact, parameters_of
from retrievers.catalogue.source import CatalogueSource, json_problem
from retrievers.errors import BadInput
from retrievers.types import Parameter, Tool

COLUMNS = ("id", "name", "description", "category", "provider", "parameters")


def header(source: CatalogueSource) -> list[str]:
    """Column names in the first line; empty where it is no line of CSV."""
    try:
        _, cells = next(_rows(source), ("", []))
    except BadInput:
        return []
    return [tidy(cell).lower() for cell in cells]


def read(source: CatalogueSource) -> Iterator[tuple[str, Tool]]:
    """The tools of a table, with the line each row starts on."""
    rows = _rows(source)
    columns = _columns(*next(rows, (f"{source.path}, line 1", [])))
    for location, cells in rows:
        if not any(cell.strip() for cell in cells):
            continue
        try:
            tool = _tool(_row(columns, cells, location), location)
        except BadInput as error:
            source.skip(error)
        else:
            yield location, tool


def _rows(source: CatalogueSource) -> Iterator[tuple[str, list[str]]]:
    delimiter = max(",;\t", key=source.text.partition("\n")[0].count)
    # strict: otherwise an unclosed quote swallows the rest of the table as one cell.
    rows = csv.reader(io.StringIO(source.text, newline=""), delimiter=delimiter, strict=True)
    location = f"{source.path}, line 1"
    try:
        for cells in rows:
            yield location, cells
            location = f"{source.path}, line {rows.line_num + 1}"
    except csv.Error as error:
        raise BadInput(f"{location}: broken CSV, {error}; check the quotes of that row") from None


def _columns(location: str, cells: list[str]) -> list[str]:
    columns = [tidy(cell).lower() for cell in cells]
    if not any(columns):
        raise BadInput(f"{location}: no header; start the table with columns out of {', '.join(COLUMNS)}")
    for column in columns:
        if column not in COLUMNS:
            near = difflib.get_close_matches(column, COLUMNS, n=1, cutoff=0.0)[0]
            raise BadInput(
                f"{location}: unknown column {column!r}, the nearest known one is {near!r}; rename or remove it"
            )
        if columns.count(column) > 1:
            raise BadInput(f"{location}: the column {column!r} is given twice; remove one")
    if "name" not in columns:
        raise BadInput(f"{location}: no column 'name'; add it, every tool needs one")
    return columns


def _row(columns: list[str], cells: list[str], location: str) -> dict[str, object]:
    """Cells by column. Spreadsheets omit empty cells at the end, but an extra cell is a lost quote."""
    if len(cells) > len(columns):
        raise BadInput(
            f"{location}: {len(cells)} cells under {len(columns)} columns; put cells with separators in quotes"
        )
    return dict(zip(columns, cells, strict=False))


def _tool(row: Mapping[str, object], location: str) -> Tool:
    name = name_at(row, "name", location)
    parameters, schema = _parameters(text_at(row, "parameters", location), location)
    return Tool(
        id=text_at(row, "id", location) or name,
        name=name,
        description=text_at(row, "description", location),
        parameters=parameters,
        category=text_at(row, "category", location),
        provider=text_at(row, "provider", location),
        schema=schema,
    )


def _parameters(cell: str, location: str) -> tuple[tuple[Parameter, ...], str]:
    """The parameters of a cell, and its schema where it is one."""
    if not cell.startswith(("{", "[")):
        return tuple(Parameter(name.strip()) for name in cell.split(";") if name.strip()), ""
    try:
        value = json.loads(cell, strict=False)
    except ValueError as error:
        raise BadInput(
            f"{location}: broken JSON in 'parameters', {json_problem(error)}; fix it or write 'a; b; c'"
        ) from None
    if isinstance(value, list):
        return tuple(_listed(entry, location) for entry in value), ""
    if value and not value.keys() & {"properties", "type", "$ref", "allOf", "anyOf", "oneOf"}:
        raise BadInput(f"{location}: the object in 'parameters' is no JSON Schema; put its keys under \"properties\"")
    return parameters_of(value, location), compact(value)


def _listed(entry: object, location: str) -> Parameter:
    where = f"{location}, parameters"
    if isinstance(entry, str):
        entry = {"name": entry}
    value = as_object(entry, where)
    required = value.get("required", False)
    if not isinstance(required, bool):
        raise BadInput(f"{where}: 'required' has to be true or false, found {kind(required)}; write one of them")
    return Parameter(
        name_at(value, "name", where), text_at(value, "type", where), text_at(value, "description", where), required
    )
