"""Request and response bodies of calls and of the servers behind the gateway."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from pipelines.serve.schemas.base import RequestModel, ResponseModel


class CallRequest(RequestModel):
    """A call of one tool."""

    tool: Annotated[str, Field(min_length=1, max_length=512)] = Field(description="A tool's id.")
    arguments: dict[str, JsonValue] = Field(default={}, description="The tool's own arguments.")


class CallResponse(ResponseModel):
    """A tool's result, as MCP defines it."""

    content: list[JsonValue]
    structured: JsonValue = Field(default=None, description="Structured content, if the tool gave some.")
    is_error: bool = Field(description="true: the tool says that it failed.")


class UpstreamOut(ResponseModel):
    """A server behind the gateway."""

    name: str
    kind: Literal["command", "http", "api"]
    state: Literal["starting", "up", "down"] = Field(description="An API is `up` until a call shows otherwise.")
    error: str = Field(description="The reason why it is down.")
    tools: int = Field(description="Tools of its newest list.")
    starts: int = Field(description="Connections so far.")
    running: int = Field(description="Calls without an answer.")
    calls: dict[str, int] = Field(description="Finished calls by outcome, since the gateway started.")


class UpstreamsResponse(ResponseModel):
    """All servers whose tools can be called."""

    upstreams: list[UpstreamOut]


class CallOut(ResponseModel):
    """A finished call."""

    time: float
    key: str
    tool: str
    outcome: str
    ms: float
    search: str | None = None
    rank: int | None = Field(default=None, description="Rank of the tool in the search that it followed.")


class CallsResponse(ResponseModel):
    """The newest calls, newest first."""

    calls: list[CallOut]
