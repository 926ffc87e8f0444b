"""What only the page asks for, on the wire."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from pipelines.serve.schemas.search import ToolOut
from pipelines.serve.schemas.state import ModelOut

Format = Literal["beir", "openapi", "mcp", "functions", "toolbench", "csv"]


class _Out(BaseModel):
    model_config = ConfigDict(frozen=True)


class Limits(_Out):
    """What one request may have."""

    bytes: int
    characters: int
    places: int
    tools: int


class AboutResponse(_Out):
    """What answers here, and what this caller may do."""

    caller: str = Field(description="The key's name.")
    scopes: list[str]
    tools: int
    models: list[ModelOut]
    asks: bool = Field(description="Whether `rewrite: auto` asks the rewriter, as its card says.")
    deadline_ms: int
    longest_deadline_ms: int
    limits: Limits
    reports: int = Field(description="How many reports there are to look at.")


class Label(_Out):
    """A provider or a category, and how many tools have it."""

    label: str
    tools: int


class LabelsResponse(_Out):
    """Those with the most tools, at most 500 each."""

    providers: list[Label]
    categories: list[Label]


class ReadRequest(BaseModel):
    """A catalogue, as text."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    document: Annotated[str, Field(min_length=1)]
    format: Format | None = Field(default=None, description="null: told by the content.")
    provider: Annotated[str, Field(max_length=200)] = Field(
        default="", description="Whose tools they are, where the document does not say; their ids then begin with it."
    )


class ReadTool(ToolOut):
    """A tool of that catalogue."""

    state: Literal["new", "changed", "same"] = Field(description="Beside the tool of the same id that is here already.")


class ReadResponse(_Out):
    """What the catalogue holds; nothing was changed."""

    tools: list[ReadTool]


class ReportOut(_Out):
    """A run's report."""

    name: str
    title: str
    headline: str
    written: float | None = Field(description="Seconds since 1970; null: the run has no report yet.")


class ReportsResponse(_Out):
    """All reports that the config names."""

    reports: list[ReportOut]
