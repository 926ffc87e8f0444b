"""Detects the format of a catalogue by its content, not by file names.

    folder  corpus.jsonl in it                                             beir
            tool.json or category/tool.json with an api_list in it         toolbench
    file    lines of JSON objects, or one object, with `_id`               beir
            an object with `openapi` or `swagger`, or YAML with that key   openapi
            an object, or a list of objects, with `api_list`               toolbench
            a JSON-RPC answer, or tools with `inputSchema`                 mcp
            other objects with `name` or `function`, wrapped or not        functions
            a first line with one of our column names                      csv

Broken JSON is reported as such, not as an unknown format.
"""

from __future__ import annotations

import re

from retrievers.catalogue.csv_table import COLUMNS, header
from retrievers.catalogue.source import CatalogueSource
from retrievers.catalogue.toolbench import tool_files
from retrievers.errors import BadInput

_YAML_KEY = re.compile(r"^[\"']?(?:openapi|swagger)[\"']?[ \t]*:", re.MULTILINE)
MAX_LOOKED_AT = 20  # files of a folder that are opened for one that is no broken JSON


def detect_format(source: CatalogueSource) -> str | None:
    """The name of the format, or None where nothing fits."""
    if source.is_folder:
        return _folder(source)
    text = source.text.lstrip()
    if not text:
        raise BadInput(f"{source.path} is empty; give a catalogue with at least one tool")
    if source.is_lines:
        _, row = next(source.rows())
        return _entry(row)
    if text.startswith(("{", "[")):
        return _document(source.document)
    if is_openapi(text):
        return "openapi"
    if set(header(source)) & set(COLUMNS):
        return "csv"
    return None


def is_openapi(yaml: str) -> bool:
    """True for the text of an OpenAPI or Swagger document in YAML."""
    return _YAML_KEY.search(yaml) is not None


def lists_servers(source: CatalogueSource) -> bool:
    """True for an MCP client's config: servers and how to start them, but no tools."""
    if source.is_lines or not source.text.lstrip().startswith("{"):
        return False
    value = source.document
    return isinstance(value, dict) and any(isinstance(value.get(key), dict) for key in ("mcpServers", "servers"))


def _folder(source: CatalogueSource) -> str | None:
    if (source.path / "corpus.jsonl").is_file():
        return "beir"
    for path in tool_files(source.path)[:MAX_LOOKED_AT]:
        try:
            document = CatalogueSource.at(path).document
        except BadInput:
            if source.report is None:
                raise
            continue
        return "toolbench" if isinstance(document, dict) and "api_list" in document else None
    return None


def _document(value: object) -> str | None:
    if isinstance(value, list):
        return _first(value)
    if not isinstance(value, dict):
        return None
    if "openapi" in value or "swagger" in value:
        return "openapi"
    if "api_list" in value:
        return "toolbench"
    if value.keys() & {"jsonrpc", "result", "serverInfo", "nextCursor"}:
        return "mcp"
    for wrapper in ("tools", "functions"):
        if isinstance(value.get(wrapper), list):
            return _first(value[wrapper])
    return _entry(value)


def _first(values: list[object]) -> str | None:
    """The format of a list. An empty one counts as functions, and is then refused as empty."""
    if not values:
        return "functions"
    first = values[0]
    if isinstance(first, dict) and first.keys() & {"result", "tools"}:
        return "mcp"
    return _entry(first)


def _entry(value: object) -> str | None:
    if not isinstance(value, dict):
        return None
    if "_id" in value:
        return "beir"
    if "api_list" in value:
        return "toolbench"
    if "inputSchema" in value:
        return "mcp"
    return "functions" if value.keys() & {"name", "function"} else None
