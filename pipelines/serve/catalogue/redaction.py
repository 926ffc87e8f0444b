"""Removes credentials from what servers send: results, progress, messages and lists of tools.

A server may repeat its credentials, plainly or as they were sent. Every spelling is replaced that a careless server
produces: percent-encoded in an address, base64 in a header, escaped in JSON. One that hides them cannot be stopped.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.shared.dispatcher import ProgressFnT

REDACTED = "[redacted]"
MIN_CHARACTERS = 8
"""Shorter values are left: they occur in other words."""
ESCAPES = 3
"""JSON in a text, which JSON in a text quotes, in the JSON of a result."""


def redact(text: str, variables: Sequence[str]) -> str:
    """The text without the values of these environment variables."""
    for name in variables:
        for spelling in _spellings(os.environ.get(name, "").strip() if name else ""):
            text = text.replace(spelling, REDACTED)
    return text


def redact_result(result: types.CallToolResult, variables: Sequence[str]) -> types.CallToolResult:
    """The result without the values of these environment variables."""
    if not any(variables):
        return result
    text = result.model_dump_json(by_alias=True)
    cleaned = redact(text, variables)
    return result if cleaned == text else type(result).model_validate_json(cleaned, by_name=False)


def redact_progress(report: ProgressFnT | None, variables: Sequence[str]) -> ProgressFnT | None:
    """Reports progress without the values of these environment variables."""
    if report is None or not any(variables):
        return report
    send = report

    async def clean(progress: float, total: float | None, message: str | None) -> None:
        await send(progress, total, message and redact(message, variables))

    return clean


@lru_cache(maxsize=256)
def _spellings(secret: str) -> tuple[str, ...]:
    """A secret as servers may repeat it, longest first. Of `USER:PASSWORD`, the password alone as well."""
    spellings = set()
    for value in (secret, secret.partition(":")[2]):
        if len(value) >= MIN_CHARACTERS:
            data = value.encode("utf-8", "surrogateescape")
            encoded = [base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()]
            spellings |= {value, quote(data, safe=""), quote(data), quote_plus(data)}
            spellings |= {*encoded, *(text.rstrip("=") for text in encoded)}
    for _ in range(ESCAPES):
        spellings |= {_escape(text, ascii_only) for text in spellings for ascii_only in (True, False)}
    return tuple(sorted(spellings, key=len, reverse=True))


def _escape(text: str, ascii_only: bool) -> str:
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]
