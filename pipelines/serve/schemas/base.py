"""Base classes of request and response bodies."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError


class RequestModel(BaseModel):
    """A request body: no conversions, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, data: Any) -> Any:
        """One error for all of them: pydantic makes one each, and 90,000 take a second."""
        if isinstance(data, dict) and not data.keys() <= _field_names(cls):
            known = ", ".join(sorted(_field_names(cls)))
            raise PydanticCustomError("extra_forbidden", "an unknown field; known are {known}", {"known": known})
        return data


@cache
def _field_names(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in model.model_fields.items())


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
