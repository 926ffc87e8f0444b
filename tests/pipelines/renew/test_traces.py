"""Agents' logs of every shape give the same turns; what is no log is told, and nothing crashes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.renew.settings import Sources
from pipelines.renew.sources import FeedbackRecord, read_records
from pipelines.renew.traces import NotATrace, TraceTurn, read_turns
from retrievers.errors import BadInput

SAID = "my sister lands at six, will she need a coat?"
CHAT_ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "arrivals", "arguments": "{}"}},
                    {"id": "c2", "type": "function", "function": {"name": "forecast", "arguments": "{}"}},
                ],
            },
        }
    ],
}
RESPONSES_ANSWER: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "output": [
        {"type": "reasoning", "id": "r1", "summary": []},
        {"type": "function_call", "id": "f1", "call_id": "c1", "name": "arrivals", "arguments": "{}"},
        {"type": "function_call", "id": "f2", "call_id": "c2", "name": "forecast", "arguments": "{}"},
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
CLAUDE_ANSWER: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
    "content": [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "c1", "name": "arrivals", "input": {}},
        {"type": "tool_use", "id": "c2", "name": "forecast", "input": {}},
    ],
}
ASKED = {"model": "m", "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": SAID}]}
BLOCKS = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": SAID}]}]}
SHAPES: dict[str, Any] = {
    "chat": {"request": ASKED, "response": CHAT_ANSWER},
    "chat, one object": ASKED | CHAT_ANSWER,
    "chat, as fine-tuning has it": {"messages": [*ASKED["messages"], CHAT_ANSWER["choices"][0]["message"]]},  # type: ignore[index, misc]
    "chat, batch": {"request": {"body": ASKED}, "response": {"status_code": 200, "body": CHAT_ANSWER}},
    "responses, text": {"request": {"model": "m", "input": SAID}, "response": RESPONSES_ANSWER},
    "responses, items": {
        "request": {"input": [{"role": "user", "content": [{"type": "input_text", "text": SAID}]}]},
        "response": RESPONSES_ANSWER,
    },
    "responses, one object": {"input": SAID} | RESPONSES_ANSWER,
    "anthropic": {"request": BLOCKS, "response": CLAUDE_ANSWER},
    "anthropic, conversation": {
        "messages": [*BLOCKS["messages"], {"role": "assistant", "content": CLAUDE_ANSWER["content"]}]
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_turn(shape: str) -> None:
    assert read_turns(SHAPES[shape]) == [TraceTurn(SAID, ["arrivals", "forecast"])]


def test_the_shapes_are_those_of_the_clients() -> None:
    chat = pytest.importorskip("openai.types.chat").ChatCompletion.model_validate(CHAT_ANSWER, strict=True)
    responses = pytest.importorskip("openai.types.responses").Response.model_validate(RESPONSES_ANSWER, strict=True)
    claude = pytest.importorskip("anthropic.types").Message.model_validate(CLAUDE_ANSWER, strict=True)
    called = [
        [call.function.name for call in chat.choices[0].message.tool_calls],
        [each.name for each in responses.output if each.type == "function_call"],
        [block.name for block in claude.content if block.type == "tool_use"],
    ]
    assert called == [["arrivals", "forecast"]] * 3


def test_calls_belong_to_what_was_said_before_them_and_failed_ones_do_not_count() -> None:
    def used(call: str, name: str) -> dict[str, Any]:
        return {"role": "assistant", "content": [{"type": "tool_use", "id": call, "name": name, "input": {}}]}

    def result(call: str, failed: bool) -> dict[str, Any]:
        block = {"type": "tool_result", "tool_use_id": call, "content": "…", "is_error": failed}
        return {"role": "user", "content": [block, {"type": "text", "text": "go on"}]}

    log = {
        "messages": [
            used("c0", "before_anybody_spoke"),
            {"role": "user", "content": "one"},
            used("c1", "a"),
            result("c1", False),
            used("c2", "b"),
            result("c2", True),
            used("c3", "c"),
            {"role": "user", "content": "two"},
            used("c4", "d"),
        ]
    }
    assert read_turns(log) == [TraceTurn("one", ["a", "c"], failed=1), TraceTurn("two", ["d"])]


@pytest.mark.parametrize("line", [{}, [], "text", None, 3, {"messages": 1}, {"request": {"a": 1}}, {"utterance": "x"}])
def test_what_is_no_trace_is_told(line: Any) -> None:
    with pytest.raises(NotATrace):
        read_turns(line)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "request response body messages input choices message role content type name tool_calls function id "
                "output function_call text tool_use_id is_error error custom call_id user assistant".split()
            ),
            inner
            | st.sampled_from(["user", "assistant", "tool_use", "function_call", "text", "tool_result", "mcp_call"]),
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(json_values)
def test_no_line_crashes_the_reader(line: Any) -> None:
    try:
        turns = read_turns(line)
    except NotATrace:
        return
    assert all(turn.utterance and all(turn.calls) for turn in turns)


def test_files_folders_and_torn_lines(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    lines = [json.dumps(shape) for shape in SHAPES.values()] + ['{"half": ', "", json.dumps({"other": 1})]
    (tmp_path / "logs" / "a.jsonl").write_text("\n".join(lines))
    feedback = {"time": 1.0, "utterance": "rain?", "tools": ["forecast"], "index": "ab", "key": "agent"}
    (tmp_path / "feedback-2026-01-01.jsonl").write_text(
        json.dumps(feedback) + "\n" + json.dumps(feedback | {"key": "stranger"}) + '\n{"torn'
    )
    left_out: Counter[str] = Counter()
    sources = Sources(feedback=(str(tmp_path),), traces=(str(tmp_path / "logs"),), keys=("agent",))
    records = list(read_records(sources, left_out))
    assert (
        records
        == [FeedbackRecord("rain?", ("forecast",), "feedback")]
        + [FeedbackRecord(SAID, ("arrivals", "forecast"), "trace")] * 9
    )
    assert +left_out == {"torn lines": 2, "other keys": 1, "lines without a conversation": 1}


def test_a_file_of_something_else_is_refused_with_the_shapes_that_are_known(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"utterance": "rain?"}\n')
    with pytest.raises(BadInput, match="holds no conversation; a line is a request or an answer of OpenAI's"):
        list(read_records(Sources(traces=(str(path),)), Counter()))
    with pytest.raises(BadInput, match="a line of feedback is"):
        list(read_records(Sources(feedback=(str(path),)), Counter()))
    with pytest.raises(BadInput, match="no file or folder"):
        list(read_records(Sources(traces=(str(tmp_path / "none.jsonl"),)), Counter()))
