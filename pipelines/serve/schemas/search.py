"""What crosses the wire. Unknown fields are refused; a client sets nothing of the model but whether it is asked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from pipelines.serve.errors import Reason
from pipelines.serve.schemas.definitions import Definitions
from rewrite.types import Status

Text = Annotated[str, Field(min_length=1, max_length=8_000)]
Id = Annotated[str, Field(min_length=1, max_length=512, examples=["weather/forecast"])]
Label = Annotated[str, Field(max_length=512)]


class _In(BaseModel):
    """Taken as it is: no number out of a text, no field that nobody reads."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class _Out(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class Filters(_In):
    """Only tools of these providers and of these categories; case does not matter, an empty list allows all."""

    provider: list[Label] = Field(default=[], max_length=64)
    category: list[Label] = Field(default=[], max_length=64)


class SearchRequest(_In):
    """What is looked for."""

    utterance: Text | Annotated[list[Text], Field(min_length=1, max_length=64)] = Field(
        examples=["my sister lands at six and I've no idea if she'll need a coat"]
    )
    """What a user said, or a list of such."""
    k: int = Field(default=10, ge=1, le=200, description="How many tools.")
    rewrite: Literal["auto", "on", "off"] = Field(
        default="auto", description="auto: as the rewriter's card advises. on: ask it anyway. off: raw retrieval alone."
    )
    detect: Literal["auto", "off"] = Field(
        default="auto", description="auto: what needs no tool gets none, where the index can tell. off: search anyway."
    )
    least_probability: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="From which probability on an utterance needs a tool; null: as the server is set, or else as "
        "chosen when the index was trained.",
    )
    filters: Filters | None = None
    deadline_ms: int | None = Field(
        default=None,
        ge=1,
        le=600_000,
        description="Until when the rewriter may answer, at most as long as this server allows.",
    )
    format: Literal["openai", "openai-responses", "anthropic", "anthropic-search", "mcp"] | None = Field(
        default=None, description="Also give the tools as definitions, ready to paste into a model's request."
    )


class Place(_Out):
    """Where a list has a tool."""

    list: str = Field(description="`raw` for the utterance itself, `line 1` and so on for the lines of the rewrite.")
    place: int = Field(description="Counted from 1.")


class FoundTool(_Out):
    """A tool, best first."""

    id: str
    name: str
    description: str
    provider: str
    category: str
    score: float = Field(description="Comparable within one result only.")
    found_by: list[Place] = Field(description="Empty for a tool that stands there because it was named outright.")


class Rewritten(_Out):
    """What the rewriter made of an utterance."""

    status: Status = Field(description="`none`: the rewriter leaves the utterance as it is, which is no failure.")
    lines: list[str]
    cached: bool
    finished: bool = Field(description="False where a cap ended the answer; its last line is then not used.")


class Fallback(_Out):
    """Why the ranking is the raw one although a rewrite was wanted."""

    reason: Reason


class Detection(_Out):
    """Whether the utterance needs a tool at all."""

    needs_tool: bool
    probability: float
    threshold: float = Field(description="From which probability on a tool is needed.")


class SearchResult(_Out):
    """What was found for one utterance."""

    detection: Detection | None = Field(description="null: the index has no detector, or it was not asked.")
    rewrite: Rewritten | None = Field(description="null: the rewriter was not asked, or did not answer in time.")
    fallback: Fallback | None = Field(description="null: nothing went wrong.")
    tools: list[FoundTool]
    definitions: Definitions | None = Field(default=None, description="null: no `format` was asked for.")


class Fingerprints(_Out):
    """What exactly has answered."""

    index: str
    retriever: str
    rewriter: str | None = Field(description="The hash of the rewriter's files, where it is known.")
    template: str | None


class SearchResponse(_Out):
    """One result an utterance, in order."""

    results: list[SearchResult]
    fingerprints: Fingerprints
    timings_ms: dict[str, float] = Field(
        description="raw and rewrite, side by side; lists: those of the rewrite's lines; fuse; total."
    )


class RewriteRequest(_In):
    """Utterances to be rewritten, without a search."""

    utterance: Text | Annotated[list[Text], Field(min_length=1, max_length=64)]
    deadline_ms: int | None = Field(default=None, ge=1, le=600_000)


class RewriteResult(_Out):
    """A rewrite, or why there is none."""

    rewrite: Rewritten | None
    fallback: Fallback | None


class RewriteResponse(_Out):
    """One result an utterance, in order."""

    results: list[RewriteResult]
    fingerprints: Fingerprints
    timings_ms: dict[str, float]


class ToolParameter(_In):
    """One argument of a tool."""

    name: str = Field(min_length=1, max_length=512)
    type: str = Field(default="", max_length=512)
    description: str = Field(default="", max_length=20_000)
    required: bool = False


class ToolBody(_In):
    """A tool as it is put into the catalogue."""

    name: str = Field(min_length=1, max_length=512)
    description: str = Field(default="", max_length=20_000)
    parameters: list[ToolParameter] = Field(default=[], max_length=256)
    category: Label = ""
    provider: Label = ""
    arguments: dict[str, JsonValue] | None = Field(
        default=None, alias="schema", description="The arguments' JSON Schema, kept for callers that paste it."
    )


class ToolWithId(ToolBody):
    """A tool in a list of tools."""

    id: Id


class ToolsBody(_In):
    """Several tools at once: one change of the index."""

    tools: list[ToolWithId] = Field(min_length=1, max_length=500)


class ToolOut(_Out):
    """A tool of the catalogue."""

    id: str
    name: str
    description: str
    parameters: list[ToolParameter]
    category: str
    provider: str
    arguments: JsonValue = Field(default=None, serialization_alias="schema")


class ToolPage(_Out):
    """Some tools, in the order of their ids."""

    tools: list[ToolOut]
    next: str | None = Field(description="`after` of the next page; null: this is the last.")
    total: int
    fingerprint: str


class HeldTool(_Out):
    """A tool that the checks have something against."""

    id: str
    flags: list[str] = Field(description="hidden, stuffed, imitation, flood, hub, or changed.")
    reasons: list[str]


class ChangeOut(_Out):
    """What a change did. It can be searched for when this is read."""

    added: int
    updated: int
    unchanged: int
    removed: int
    fingerprint: str
    held: list[HeldTool] = Field(default=[], description="What was kept out until it is approved.")
    flagged: list[HeldTool] = Field(default=[], description="What came in, and should be looked at.")


class FeedbackRequest(_In):
    """Tools that were the right ones for an utterance."""

    utterance: Text
    tools: list[Id] = Field(min_length=1, max_length=64)


class FeedbackResponse(_Out):
    """It is on the disk."""

    kept: Literal[True] = True


class ImportRequest(_In):
    """A catalogue to fetch and add."""

    url: str = Field(min_length=1, max_length=2_048)
    format: Literal["beir", "openapi", "mcp", "mcp-server", "functions", "toolbench", "csv"] | None = Field(
        default=None, description="`mcp-server`: ask a running MCP server; `mcp`: read an answer of one from a file."
    )


class ErrorDetail(_Out):
    """What went wrong."""

    code: str = Field(description="For programs.")
    message: str = Field(description="For people.")


class ErrorBody(_Out):
    """The one shape of every error."""

    error: ErrorDetail
