"""What is read of a row, and what is told of one that cannot be used."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.batch.rows import BadRow, InputRow, RowReader, UnusableRow, shape_of
from pipelines.batch.settings import InputSettings

PLAIN = RowReader(InputSettings())
OPENAI = RowReader(InputSettings(), "openai")


def line(**facts: Any) -> bytes:
    return json.dumps(facts).encode()


@pytest.mark.parametrize(
    ("raw", "row"),
    [
        (line(_id="a", text="rain?"), InputRow(7, "a", "rain?")),
        (line(id=5, query="rain?"), InputRow(7, "5", "rain?")),
        (line(utterance="rain?"), InputRow(7, "7", "rain?")),
        (b'"rain?"', InputRow(7, "7", "rain?")),
        ({"question": "rain?", "other": None}, InputRow(7, "7", "rain?")),
    ],
)
def test_a_row_is_recognised_by_its_keys(raw: Any, row: InputRow) -> None:
    assert PLAIN.read(7, raw) == row


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{broken", "not JSON"),
        (b"", "empty"),
        (b"  ", "empty"),
        (line(text=""), "empty"),
        (line(text=" \n "), "empty"),
        (line(text=None), "empty"),
        (line(text=["a"]), "the utterance is not text"),
        (line(text="x" * 8001), "8001 characters, more than 8000"),
        (line(other="x"), "no text or query or utterance or question"),
        (line(text="x", id=True), "the id is neither text nor a whole number"),
        (line(text="x", id=""), "the id is neither text nor a whole number"),
        (b'{"text": "\xff"}', "not UTF-8 at byte 10"),
        (b'{"text": "\\ud800"}', "the utterance is not UTF-8 at character 0"),
        (b"[1]", "neither a JSON object nor a string"),
        (b"[" * 100_000, "not JSON"),
        (UnusableRow("torn"), "torn"),
    ],
)
def test_a_bad_row_says_why(raw: Any, reason: str) -> None:
    bad = PLAIN.read(7, raw)
    assert isinstance(bad, BadRow)
    assert bad.number == 7
    assert bad.reason.startswith(reason)
    assert len(bad.raw) <= 500


def test_named_keys_are_the_only_ones() -> None:
    reader = RowReader(InputSettings(text="ask", id="number"))
    assert reader.read(1, line(ask="rain?", number="n", text="no")) == InputRow(1, "n", "rain?")
    assert reader.read(1, line(text="rain?", number="n")) == BadRow(
        1, "no ask", line(text="rain?", number="n").decode(), "n"
    )
    assert isinstance(reader.read(1, line(ask="rain?")), BadRow)


def test_a_request_of_the_batch_api_is_its_users_last_words() -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "first"}]
    parts = {"role": "user", "content": [{"type": "text", "text": "last"}, {"type": "image_url", "image_url": {}}]}
    request = {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": messages}}
    assert shape_of(json.dumps(request).encode()) == "openai"
    assert OPENAI.read(1, json.dumps(request).encode()) == InputRow(1, "r1", "first")
    messages.append(parts)
    assert OPENAI.read(1, json.dumps(request).encode()) == InputRow(1, "r1", "last")
    for wrong in ({}, {"body": []}, {"body": {"messages": [{"role": "system", "content": "x"}]}}):
        assert isinstance(OPENAI.read(1, json.dumps({"custom_id": "x", **wrong}).encode()), BadRow)
    assert OPENAI.read(1, line(body={"messages": messages})).reason == "no custom_id"  # type: ignore[union-attr]


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_line_is_a_row_or_a_bad_row(raw: bytes) -> None:
    for reader in (PLAIN, OPENAI, RowReader(InputSettings(), bare=True)):
        found = reader.read(3, raw)
        assert found.number == 3
        json.dumps(found.raw if isinstance(found, BadRow) else found.text, ensure_ascii=False).encode("utf-8")


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "id", "custom_id", "body", "messages", "role", "content"]), inner)
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_a_row_or_a_bad_row(facts: Any) -> None:
    raw = json.dumps(facts).encode()
    assert shape_of(raw) in ("plain", "openai")
    for reader in (PLAIN, OPENAI):
        assert isinstance(reader.read(1, raw), (InputRow, BadRow))
