"""Outcomes of calls, and the failure that every part of a call raises."""

from __future__ import annotations

from typing import Literal

Outcome = Literal[
    "ok",
    "tool_error",
    "unknown_tool",
    "not_callable",
    "forbidden",
    "arguments",
    "busy",
    "unavailable",
    "timeout",
    "lost",
    "too_large",
    "upstream_error",
    "cancelled",
    "failed",
]
"""How a call ended.

ok              the tool answered
tool_error      the tool answered that it failed
unknown_tool    no such tool, or none that the caller may find
not_callable    the tool is known, but no server or API of the config has it
forbidden       the caller may not call this tool
arguments       the arguments do not fit the tool's schema
busy            too many calls are running at this server
unavailable     the server cannot be reached; the call was not sent
timeout         no answer in time; the call may have been carried out
lost            the connection broke during the call; it may have been carried out
too_large       the answer exceeds the limit; the call was carried out
upstream_error  the server refused the call, or answered with something that is no result
cancelled       the caller cancelled, or left
failed          a bug of the gateway; see its log
"""

STATUS: dict[Outcome, int] = {
    "unknown_tool": 404,
    "not_callable": 422,
    "forbidden": 403,
    "arguments": 422,
    "busy": 429,
    "unavailable": 503,
    "timeout": 504,
    "lost": 502,
    "too_large": 502,
    "upstream_error": 502,
}
"""The HTTP status of each failure."""


class CallFailure(Exception):
    """A call without a result: how it ended, and a sentence that a model can act on."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome, self.message = outcome, message
