"""Base classes of request and response bodies."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class RequestModel(BaseModel):
    """A request body: no conversions, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ResponseModel(BaseModel):
    """A response body."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class ErrorDetail(ResponseModel):
    """The error."""

    code: str = Field(description="For programs.")
    message: str = Field(description="For people.")


class ErrorBody(ResponseModel):
    """The body of every error."""

    error: ErrorDetail
