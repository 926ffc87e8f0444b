"""The server's own state, on the wire."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Out(BaseModel):
    model_config = ConfigDict(frozen=True)


class ModelOut(_Out):
    """A model behind this server."""

    id: str
    role: Literal["retriever", "rewriter"]
    ready: bool
    fingerprint: str | None
    engine: str | None = None
    template: str | None = None


class ModelsResponse(_Out):
    """All of them."""

    models: list[ModelOut]


class ReadyResponse(_Out):
    """Whether requests should be sent here."""

    ready: bool
    tools: int
    rewriter: Literal["none", "starting", "ready"]
    stale: bool = Field(
        description="true: the old index answers; a newer one cannot be opened, or the database cannot be reached."
    )


class HealthResponse(_Out):
    """The process lives."""

    status: Literal["ok"] = "ok"
