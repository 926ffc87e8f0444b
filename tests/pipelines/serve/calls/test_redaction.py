"""Credentials of servers are replaced in every spelling that a careless server repeats."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import mcp_types as types
import pytest

from pipelines.serve.catalogue.redaction import redact, redact_result

SECRET = 'se"cret/ö+4711 x'


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIN", SECRET)
    monkeypatch.setenv("BASIC", "user:pass-word-123")
    monkeypatch.setenv("SHORT", "abc")


@pytest.mark.parametrize(
    "spelling",
    [
        SECRET,
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        base64.b64encode(b"user:pass-word-123").decode(),
        "pass-word-123",
    ],
)
def test_every_spelling_is_replaced(spelling: str) -> None:
    assert redact(f"<{spelling}>", ("PLAIN", "BASIC", "SHORT", "", "ABSENT")) == "<[redacted]>"
    text = json.dumps({"echo": f"<{spelling}>"})  # JSON in a text, which the result escapes again
    result = types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content={"a": spelling}
    )
    cleaned = redact_result(result, ("PLAIN", "BASIC"))
    assert json.loads(cleaned.content[0].text) == {"echo": "<[redacted]>"}  # type: ignore[union-attr]
    assert cleaned.structured_content == {"a": "[redacted]"}


def test_other_texts_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert redact("abc user", ("SHORT", "BASIC")) == "abc user"  # too short: it occurs in words
