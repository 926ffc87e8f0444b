"""Request and response bodies of search, rewrite and feedback."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from pipelines.serve.errors import NotAsked, Reason, RerankReason
from pipelines.serve.schemas.base import RequestModel, ResponseModel
from pipelines.serve.schemas.tools import Id, Label
from rewrite.types import Outcome

Text = Annotated[str, Field(min_length=1, max_length=8_000)]
Utterances = Text | Annotated[list[Text], Field(min_length=1, max_length=64)]
Format = Literal["openai", "openai-responses", "anthropic", "anthropic-search", "mcp"]


class Filters(RequestModel):
    """Allowed providers and categories, ignoring case; an empty list allows all."""

    provider: list[Label] = Field(default=[], max_length=64)
    category: list[Label] = Field(default=[], max_length=64)


class SearchRequest(RequestModel):
    """One utterance, or a list of utterances, to find tools for."""

    utterance: Utterances = Field(
        examples=["my son wants to see Saturn tonight, and I want to know if it will be overcast at nine"]
    )
    k: int = Field(default=10, ge=1, le=200, description="Number of tools.")
    rewrite: Literal["auto", "on", "off"] = Field(
        default="auto", description="auto: as the rewriter's card advises. on: always. off: raw search only."
    )
    detect: Literal["auto", "off"] = Field(
        default="auto",
        description="auto: an utterance that needs no tool gets none, if the index has a detector. off: always search.",
    )
    detection_threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Probability from which an utterance needs a tool; null: the server's setting, or else the "
        "threshold chosen when the index was trained.",
    )
    min_score: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Leave out tools with a lower `relevance`; null: the server's setting, or else none is left out.",
    )
    min_probability: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Leave out tools with a lower `probability`: all that are probably needed, at most `k`; null: the "
        "server's setting, or else none is left out.",
    )
    votes: Literal["auto", "off"] = Field(
        default="auto",
        description="off: leave out the votes of earlier queries, if the retriever adds some; `relevance` and "
        "`probability` are calibrated with them.",
    )
    rerank: Literal["auto", "off"] = Field(default="auto", description="auto: if the server has a reranker.")
    filters: Filters | None = None
    deadline_ms: int | None = Field(
        default=None,
        ge=1,
        le=600_000,
        description="Time for rewriter and reranker, at most the server's max_deadline_ms.",
    )
    format: Format | None = Field(default=None, description="Also return the tools as definitions for a model API.")


class ListRank(ResponseModel):
    """A tool's rank in one of the fused lists."""

    list: str = Field(description="`raw` for the utterance itself, `line 1` and so on for the lines of the rewrite.")
    rank: int = Field(description="Starts at 1.")


class FoundTool(ResponseModel):
    """A tool of the ranking."""

    id: str
    name: str
    description: str
    provider: str
    category: str
    score: float = Field(description="Comparable within one result only.")
    relevance: float | None = Field(
        description="Estimated probability that a tool of this group (ranks 1 to 5, 6 to 10 and so on) is needed, the "
        "same for every retriever; null: this one is not calibrated."
    )
    probability: float | None = Field(description="Estimated probability that this tool is needed; null: unknown.")
    found_by: list[ListRank] = Field(description="Empty if the utterance names the tool itself.")
    fused_rank: int | None = Field(default=None, description="Rank before the reranker; null: none was at work.")


class RewriteOut(ResponseModel):
    """The rewrite of an utterance."""

    status: Outcome = Field(
        description="`none`: the rewriter leaves the utterance as it is; `echo`: it only repeats it. No failures."
    )
    lines: list[str]
    votes: list[int] = Field(
        default=[], description="Per line, the number of answers that have it; empty: the model gave one answer."
    )
    cached: bool
    finished: bool = Field(description="false: the answer hit the token limit; its last line is not used.")


class Fallback(ResponseModel):
    """Why the ranking is raw although a rewrite was wanted."""

    reason: Reason


class DetectionOut(ResponseModel):
    """Decision of the detector: does the utterance need a tool?"""

    needs_tool: bool
    probability: float
    threshold: float = Field(description="Probability from which a tool is needed.")


class TokenCounts(ResponseModel):
    """Estimated from the length of the definitions."""

    sent: int = Field(description="Of the definitions in this response.")
    catalogue: int = Field(description="Of the definitions of the whole catalogue.")
    saved: int


class DefinitionsOut(ResponseModel):
    """The tools in the format of a model API, best first."""

    tools: list[JsonValue]
    names: dict[str, str] = Field(description="Name in the definition -> tool id.")
    arguments: dict[str, dict[str, str]] = Field(
        description="Name -> argument in the definition -> the tool's own argument, where that is no legal name."
    )
    references: list[JsonValue] | None = Field(
        description="With `anthropic-search`: the content of the tool_result that answers the model's search."
    )
    tokens: TokenCounts


class RerankOut(ResponseModel):
    """The work of the reranker."""

    tools: int = Field(description="Number of tools that it put into a new order.")
    weight: float | None = Field(
        default=None, description="Its share beside the first order; null: the tools are in their first order."
    )
    fallback: RerankReason | None = Field(description="Why the tools are in their first order; null: they are not.")


class NothingFitsOut(ResponseModel):
    """Reason why `min_score` or `min_probability` left no tool."""

    best: str | None = Field(description="Id of the best tool; null: no tool was found at all.")
    relevance: float
    min_score: float
    probability: float | None = Field(default=None, description="Of the best tool, if `min_probability` left none.")
    min_probability: float | None = None
    message: str = Field(description="The same in a sentence.")


class SearchResult(ResponseModel):
    """Tools for one utterance."""

    detection: DetectionOut | None = Field(description="null: the index has no detector, or detection is off.")
    rewrite: RewriteOut | None = Field(description="null: the rewriter was not asked, or did not answer in time.")
    not_asked: NotAsked | None = Field(
        description="Why the rewriter was not asked. `off`: the request says so. `no_rewriter`: this server has none. "
        "`card`: its card, or the config, gives the raw ranking everything; `rewrite: on` asks it nevertheless. "
        "`detector`: the utterance needs no tool. `confident`: the raw ranking's first tool scores high enough. "
        "null: it was asked."
    )
    fallback: Fallback | None = Field(description="null: the rewriter did not fail.")
    rerank: RerankOut | None = Field(default=None, description="null: no reranker was asked.")
    tools: list[FoundTool]
    nothing_fits: NothingFitsOut | None = Field(default=None, description="null: some tool fits, or no threshold.")
    definitions: DefinitionsOut | None = Field(default=None, description="null: the request has no `format`.")


class Fingerprints(ResponseModel):
    """Versions of everything that took part in the answer."""

    index: str
    retriever: str
    rewriter: str | None = Field(description="The hash of the rewriter's files, if known.")
    template: str | None
    reranker: str | None = Field(default=None, description="The hash of the reranker's files.")


class SearchResponse(ResponseModel):
    """One result per utterance, in order."""

    results: list[SearchResult]
    fingerprints: Fingerprints
    timings_ms: dict[str, float] = Field(
        description="raw and rewrite, which run in parallel; lists: search of the rewrite's lines; fuse; rerank; total."
    )


class RewriteBody(RequestModel):
    """Utterances to rewrite without a search."""

    utterance: Utterances
    deadline_ms: int | None = Field(default=None, ge=1, le=600_000)


class RewriteResult(ResponseModel):
    """A rewrite, or the reason why there is none."""

    rewrite: RewriteOut | None
    fallback: Fallback | None


class RewriteResponse(ResponseModel):
    """One result per utterance, in order."""

    results: list[RewriteResult]
    fingerprints: Fingerprints
    timings_ms: dict[str, float]


class FeedbackRequest(RequestModel):
    """The right tools for an utterance."""

    utterance: Text
    tools: list[Id] = Field(min_length=1, max_length=64)


class FeedbackResponse(ResponseModel):
    """The feedback is stored."""

    kept: Literal[True] = True
