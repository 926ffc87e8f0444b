"""Tools as definitions, on the wire."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class _Out(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class Tokens(_Out):
    """Estimated from the length of the definitions."""

    sent: int = Field(description="Of the definitions here.")
    catalogue: int = Field(description="Of the definitions of the whole catalogue.")
    saved: int


class Definitions(_Out):
    """The tools as a model API takes them, best first."""

    tools: list[JsonValue]
    names: dict[str, str] = Field(description="The name that the model calls a tool by -> the tool's id.")
    arguments: dict[str, dict[str, str]] = Field(
        description="Name -> argument as the model calls it -> as the tool does, where that is no legal name."
    )
    references: list[JsonValue] | None = Field(
        description="With `anthropic-search`: the content of the tool_result that answers the model's search."
    )
    tokens: Tokens
