"""Response bodies about the server's own state."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipelines.serve.schemas.base import ResponseModel


class ModelOut(ResponseModel):
    """A model behind this server."""

    id: str
    role: Literal["retriever", "rewriter", "reranker"]
    ready: bool
    fingerprint: str | None
    engine: str | None = None
    template: str | None = None
    error: str | None = Field(
        default=None, description="Why the model cannot start; the cause needs the scope write or admin."
    )


class ModelsResponse(ResponseModel):
    """All models behind this server."""

    models: list[ModelOut]


class ReadyResponse(ResponseModel):
    """Readiness of the server."""

    ready: bool
    tools: int
    rewriter: Literal["none", "starting", "ready", "failed"] = Field(
        description="failed: it cannot start and is not tried again; GET /v1/models has the cause."
    )
    stale: bool = Field(
        description="true: the old index answers, because the newer one cannot be opened or the database is away."
    )
    error: str | None = Field(default=None, description="A part of the server that cannot be loaded; see its log.")


class HealthResponse(ResponseModel):
    """The process is alive."""

    status: Literal["ok"] = "ok"
