"""Request and response bodies of the catalogue: tools, changes, imports, quarantine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from pipelines.serve.schemas.base import RequestModel, ResponseModel
from retrievers.lint.limits import MAX_DESCRIPTION, MAX_LABEL, MAX_PARAMETERS

Id = Annotated[str, Field(min_length=1, max_length=MAX_LABEL, examples=["weather/forecast"])]
Label = Annotated[str, Field(max_length=MAX_LABEL)]
Ids = Annotated[list[Id], Field(min_length=1, max_length=500)]


class ToolParameter(RequestModel):
    """One argument of a tool."""

    name: str = Field(min_length=1, max_length=MAX_LABEL)
    type: Label = ""
    description: str = Field(default="", max_length=MAX_DESCRIPTION)
    required: bool = False


class ToolBody(RequestModel):
    """A tool to add or replace."""

    name: str = Field(min_length=1, max_length=MAX_LABEL)
    description: str = Field(default="", max_length=MAX_DESCRIPTION)
    parameters: list[ToolParameter] = Field(default=[], max_length=MAX_PARAMETERS, fail_fast=True)
    category: Label = ""
    provider: Label = ""
    arguments: dict[str, JsonValue] | None = Field(
        default=None, alias="schema", description="JSON Schema of the arguments; returned as it is."
    )
    call: dict[str, JsonValue] | None = Field(
        default=None,
        description="Method, server, path, places of the arguments and security; returned as it is. Left out: the "
        "stored one is kept; null: it is removed.",
    )


class ToolWithId(ToolBody):
    """A tool in a list of tools."""

    id: Id


class ToolsBody(RequestModel):
    """Several tools; one change of the index."""

    tools: list[ToolWithId] = Field(min_length=1, max_length=500, fail_fast=True)


class ToolOut(ResponseModel):
    """A tool of the catalogue."""

    id: str
    name: str
    description: str
    parameters: list[ToolParameter]
    category: str
    provider: str
    arguments: JsonValue = Field(default=None, serialization_alias="schema")
    call: JsonValue = Field(default=None, description="How the tool is called, if its catalogue says so.")


class ToolPage(ResponseModel):
    """One page of tools, ordered by id."""

    tools: list[ToolOut]
    next: str | None = Field(description="`after` of the next page; null: this is the last.")
    total: int
    fingerprint: str


class FlaggedTool(ResponseModel):
    """A tool that failed a check."""

    id: str
    flags: list[str] = Field(description="hidden, stuffed, imitation, flood, hub, or changed.")
    reasons: list[str]


class ChangeOut(ResponseModel):
    """The outcome of a change; searches find the tools from now on."""

    added: int
    updated: int
    unchanged: int
    removed: int
    fingerprint: str
    held: list[FlaggedTool] = Field(default=[], description="Tools in quarantine until an admin approves them.")
    flagged: list[FlaggedTool] = Field(default=[], description="Tools that were added although a check failed.")
    skipped: list[str] = Field(default=[], description="Entries of an imported catalogue that could not be read.")


class ImportRequest(RequestModel):
    """A catalogue to fetch and add."""

    url: str = Field(min_length=1, max_length=2_048)
    format: Literal["beir", "openapi", "mcp", "mcp-server", "functions", "toolbench", "csv"] | None = Field(
        default=None, description="`mcp-server`: ask a running MCP server; `mcp`: read its saved tools/list answer."
    )


class QuarantinedToolOut(FlaggedTool):
    """A tool in quarantine, and the version that the catalogue has."""

    tool: ToolOut
    now: ToolOut | None = Field(description="The catalogue's version; null: it has none.")


class QuarantinePage(ResponseModel):
    """Tools in quarantine, oldest first."""

    tools: list[QuarantinedToolOut]
    total: int


class QuarantineRequest(RequestModel):
    """Tools to approve or reject."""

    ids: Ids


class RejectedResponse(ResponseModel):
    """Number of tools deleted from quarantine."""

    rejected: int


class ReadTool(ToolOut):
    """A tool of the catalogue that was read."""

    state: Literal["new", "changed", "same"] = Field(description="Compared with the live tool of the same id.")


class ReadResponse(ResponseModel):
    """The tools that were read; the live catalogue is not changed."""

    tools: list[ReadTool]
    skipped: list[str] = Field(default=[], description="Entries that could not be read.")
