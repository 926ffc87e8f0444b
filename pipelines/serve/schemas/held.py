"""Tools that wait, on the wire."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from pipelines.serve.schemas.search import HeldTool, Id, ToolOut


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Out(BaseModel):
    model_config = ConfigDict(frozen=True)


class WaitingTool(HeldTool):
    """The same with both versions of it."""

    tool: ToolOut
    now: ToolOut | None = Field(description="As the catalogue has it; null: not at all.")


class WaitingPage(_Out):
    """All that waits, oldest first."""

    tools: list[WaitingTool]
    total: int


class HeldRequest(_In):
    """Tools that wait."""

    ids: list[Id] = Field(min_length=1, max_length=500)


class RejectedResponse(_Out):
    """They are gone."""

    rejected: int
