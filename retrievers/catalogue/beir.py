"""BEIR's corpus: one {_id, title, text, metadata} per line.

The title is the tool's name; without titles the id is. Of the metadata, `category`, `provider` (else `server`, else
`tool`) and `parameters` are read where they have the right type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from retrievers.catalogue.fields import name_at, object_at, text_at, text_or_nothing
from retrievers.catalogue.source import CatalogueSource
from retrievers.errors import BadInput
from retrievers.text import visible
from retrievers.types import Parameter, Tool


def read(source: CatalogueSource) -> Iterator[tuple[str, Tool]]:
    """The tools of a corpus.jsonl, or of the one in a folder, with their locations."""
    if source.is_folder:
        corpus = source.path / "corpus.jsonl"
        if not corpus.is_file():
            raise BadInput(f"{source.path} has no corpus.jsonl; name the folder or the file that holds the corpus")
        source = CatalogueSource.at(corpus, source.provider, source.report)
    for location, row in source.rows():
        try:
            tool = _tool(row, location)
        except BadInput as error:
            source.skip(error)
        else:
            yield location, tool


def _tool(row: Mapping[str, object], location: str) -> Tool:
    tool = name_at(row, "_id", location)
    metadata = object_at(row, "metadata", location)
    providers = (text_or_nothing(metadata, key) for key in ("provider", "server", "tool"))
    return Tool(
        id=tool,
        name=_title(text_at(row, "title", location)) or tool,
        description=text_at(row, "text", location),
        parameters=_parameters(metadata.get("parameters")),
        category=text_or_nothing(metadata, "category"),
        provider=next((provider for provider in providers if provider), ""),
    )


def _title(text: str) -> str:
    """A title as one line that a person can see: titles are written for people, and nothing is called by them."""
    return " ".join(visible(text).split())


def _parameters(value: object) -> tuple[Parameter, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(_parameter(entry) for entry in value if isinstance(entry, dict) and text_or_nothing(entry, "name"))


def _parameter(entry: Mapping[str, object]) -> Parameter:
    return Parameter(
        name=text_or_nothing(entry, "name"),
        type=text_or_nothing(entry, "type"),
        description=text_or_nothing(entry, "description"),
        required=entry.get("required") is True,
    )
