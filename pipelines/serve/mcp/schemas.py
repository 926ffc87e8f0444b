"""What the MCP tools take and give. Their doc strings are what a model reads."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from pipelines.serve.schemas.search import FoundTool, Label

Labels = Annotated[list[Label], Field(max_length=64)]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SearchTools(_Asked):
    """Find the tools that a request needs, best first. Say in a sentence what is to be done, as the user said it."""

    query: str = Field(min_length=1, max_length=8_000, description="What is to be done, in plain words.")
    k: int = Field(default=5, ge=1, le=200, description="How many tools.")
    provider: Labels = Field(default=[], description="Only tools of these providers; empty: all.")
    category: Labels = Field(default=[], description="Only tools of these categories; empty: all.")


class GetTool(_Asked):
    """The whole definition of one tool, with the JSON Schema of its arguments."""

    id: str = Field(min_length=1, max_length=512, description="A tool's id, as search_tools gives it.")


class FoundTools(BaseModel):
    """What was found."""

    tools: list[FoundTool]
    index: str = Field(description="The fingerprint of the catalogue that was searched.")


class ToolDefinition(BaseModel):
    """A tool as MCP defines it, and where it comes from."""

    model_config = ConfigDict(populate_by_name=True)

    id: str
    name: str
    description: str
    provider: str
    category: str
    inputSchema: dict[str, Any]
