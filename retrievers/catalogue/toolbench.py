"""ToolBench's tool JSON: one tool (a RapidAPI provider) with its list of APIs; each API is a `Tool` here.

A folder holds tool.json files, or category/tool.json as ToolBench ships them; a file without category takes its
folder's name. The tool's description follows the API's, which is often no more than its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from retrievers.catalogue.fields import as_object, list_at, name_at, text_at
from retrievers.catalogue.source import CatalogueSource
from retrievers.errors import BadInput
from retrievers.types import Parameter, Tool


def tool_files(folder: Path) -> list[Path]:
    """The JSON files of a folder and of the folders in it, in a stable order."""
    try:
        return sorted(path for pattern in ("*.json", "*/*.json") for path in folder.glob(pattern) if path.is_file())
    except OSError as error:
        raise BadInput(f"{folder} cannot be listed ({error.strerror}); check its permissions") from None


def read(source: CatalogueSource) -> Iterator[tuple[str, Tool]]:
    """The APIs of one file or of every file in a folder, with their locations."""
    files = [(source, "")]
    if source.is_folder:
        files = [(CatalogueSource.at(path), path.absolute().parent.name) for path in tool_files(source.path)]
    for file, category in files:
        try:
            tools = [entry for location, value in file.entries() for entry in _apis(value, location, category)]
        except BadInput as error:
            source.skip(error)
            continue
        yield from tools


def _apis(value: Mapping[str, object], location: str, category: str) -> Iterator[tuple[str, Tool]]:
    names = (text_at(value, key, location) for key in ("tool_name", "title", "name"))
    provider = next((name for name in names if name), "")
    if not provider:
        raise BadInput(f"{location}: 'tool_name' is missing or blank; give every tool one")
    if "api_list" not in value:
        raise BadInput(f"{location}: no 'api_list' in it; give ToolBench's tool JSON")
    category = text_at(value, "category", location) or category
    about = text_at(value, "tool_description", location)
    for number, entry in enumerate(list_at(value, "api_list", location)):
        where = f"{location}, api_list[{number}]"
        api = as_object(entry, where)
        name = name_at(api, "name", where)
        own = text_at(api, "description", where)
        tool = Tool(
            id="/".join(part for part in (category, provider, name) if part),
            name=name,
            description=own if about in own else f"{own}\n{about}".strip(),
            parameters=tuple(_parameters(api, where)),
            category=category,
            provider=provider,
        )
        yield where, tool


def _parameters(api: Mapping[str, object], location: str) -> Iterator[Parameter]:
    for key, required in (("required_parameters", True), ("optional_parameters", False)):
        for number, entry in enumerate(list_at(api, key, location)):
            where = f"{location}, {key}[{number}]"
            value = as_object(entry, where)
            yield Parameter(
                name=name_at(value, "name", where),
                type=text_at(value, "type", where).lower(),  # ToolBench writes types in capitals
                description=text_at(value, "description", where),
                required=required,
            )
