"""Request and response bodies of the routes that only the page uses."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipelines.serve.schemas.base import RequestModel, ResponseModel
from pipelines.serve.schemas.search import Text
from pipelines.serve.schemas.server import ModelOut
from pipelines.serve.schemas.tools import FlaggedTool

Format = Literal["beir", "openapi", "mcp", "functions", "toolbench", "csv"]


class LimitsOut(ResponseModel):
    """Limits of one request."""

    bytes: int
    characters: int
    k: int
    tools: int


class AboutResponse(ResponseModel):
    """The server's models and limits, and the caller's scopes."""

    caller: str = Field(description="The key's name.")
    scopes: list[str]
    tools: int
    models: list[ModelOut]
    asks: bool = Field(description="true: `rewrite: auto` asks the rewriter, as its card advises.")
    detects: bool = Field(description="true: the index has a detector.")
    votes: bool = Field(description="true: the retriever adds votes of earlier queries; `votes: off` leaves them out.")
    examples: list[str] = Field(description="Requests to begin with.")
    deadline_ms: int
    max_deadline_ms: int
    limits: LimitsOut
    reports: int = Field(description="Number of reports.")


class ExplainRequest(RequestModel):
    """An utterance whose ranking is to be explained."""

    utterance: Text


class PartOut(ResponseModel):
    """A part of the retriever."""

    name: str = Field(description="A retriever of a hybrid, or `without votes` for MassTool.")
    tools: list[str] = Field(description="Ids of its first 50 tools.")


class ExplainResponse(ResponseModel):
    """Parts of the raw ranking of an utterance; all empty where the retriever has none."""

    parts: list[PartOut]
    voters: int = Field(description="Similar earlier queries, whose tools are known.")
    votes: dict[str, int] = Field(description="Tool id -> number of those queries that needed it.")


class LabelOut(ResponseModel):
    """A provider or a category, and the number of its tools."""

    label: str
    tools: int


class LabelsResponse(ResponseModel):
    """Providers and categories with the most tools, at most 500 each."""

    providers: list[LabelOut]
    categories: list[LabelOut]


class ReadRequest(RequestModel):
    """A catalogue as text."""

    document: Annotated[str, Field(min_length=1)]
    format: Format | None = Field(default=None, description="null: detected from the content.")
    provider: Annotated[str, Field(max_length=200)] = Field(
        default="", description="Provider of tools without one; their ids then begin with it."
    )


class FindingsResponse(ResponseModel):
    """Tools of the catalogue, and of servers that it follows, that failed checks; the first 200 of each kind."""

    held: list[FlaggedTool] = Field(description="Tools that wait for approval.")
    flagged: list[FlaggedTool] = Field(description="Tools that searches find, and that a person should read.")
    refused: list[str] = Field(description="Tools of followed servers beyond the limits.")
    total: int


class ReportOut(ResponseModel):
    """A run's report."""

    name: str
    title: str
    headline: str
    written: float | None = Field(description="Seconds since 1970; null: the run has no report yet.")


class ReportsResponse(ResponseModel):
    """All reports that the config names."""

    reports: list[ReportOut]
