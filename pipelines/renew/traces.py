"""Reads agents' logs: what the user said, and the tools that were called for it.

A line is a request, its answer, or both: OpenAI chat completions and responses, Anthropic messages, each alone, as
{"request": …, "response": …}, or as in a batch job ({"body": …}). A turn begins with a message of the user and ends
with the next one; the calls in between belong to it, except those whose result is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Item = Mapping[str, Any]
_TEXTS = {"text", "input_text"}
_CALLS = {"tool_use", "mcp_tool_use", "function_call", "custom_tool_call", "mcp_call"}
"""Types of blocks and items that name the tool they call."""


@dataclass(slots=True)
class TraceTurn:
    """A message of the user, and the tools called before the next one."""

    utterance: str
    calls: list[str] = field(default_factory=list)
    failed: int = 0


class NotATrace(ValueError):
    """A line without a conversation of a known shape."""


def read_turns(record: Any) -> list[TraceTurn]:
    """Turns of one line of a log. A call before the first message of the user belongs to no turn."""
    entries = list(_entries(record))
    if not entries:
        raise NotATrace("no messages, no input, no choices, no output, no content")
    failed = {call for entry in entries for call in _failed_calls(entry)}
    turns: list[TraceTurn] = []
    for entry in entries:
        if text := _user_text(entry):
            turns.append(TraceTurn(text))
        for name, call in _calls(entry) if turns else ():
            if call and call in failed:
                turns[-1].failed += 1
            else:
                turns[-1].calls.append(name)
    return turns


def _entries(record: Any) -> Iterator[Item]:
    """Messages and items of a request and of its answer, in order."""
    if not isinstance(record, Mapping):
        return
    request, response = (_body(record.get(key)) for key in ("request", "response"))
    if request is None and response is None:
        request = _body(record)
    for part in (request, response):
        if part is not None:
            yield from _request_entries(part)
            yield from _answer_entries(part)


def _body(part: Any) -> Item | None:
    """A request or an answer without the envelope of a batch job."""
    if not isinstance(part, Mapping):
        return None
    inner = part.get("body")
    return inner if isinstance(inner, Mapping) else part


def _mappings(items: Any) -> list[Item]:
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def _request_entries(part: Item) -> list[Item]:
    messages = part.get("messages", part.get("input"))
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else _mappings(messages)


def _answer_entries(part: Item) -> list[Item]:
    choices, output = part.get("choices"), part.get("output")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        return _mappings([choices[0].get("message")])
    if isinstance(output, list):
        return _mappings(output)
    return [part] if isinstance(part.get("content"), list) and part.get("role") == "assistant" else []


def _user_text(entry: Item) -> str:
    """Text of a user's message; "" for other roles, and for a tool's result in the user's name."""
    if entry.get("role") != "user":
        return ""
    content = entry.get("content")
    if isinstance(content, str):
        return content.strip()
    blocks = _mappings(content)
    if any(block.get("type") == "tool_result" for block in blocks):
        return ""
    texts = [block.get("text") for block in blocks if block.get("type") in _TEXTS]
    return "\n".join(text for text in texts if isinstance(text, str)).strip()


def _calls(entry: Item) -> Iterator[tuple[str, str]]:
    """Names and ids of the calls in an entry."""
    pairs: list[tuple[Any, Any]] = []
    if entry.get("role") == "assistant":
        for call in _mappings(entry.get("tool_calls")):
            inner = call.get("function") or call.get("custom")
            pairs.append((inner.get("name") if isinstance(inner, Mapping) else None, call.get("id")))
        legacy = entry.get("function_call")
        if isinstance(legacy, Mapping):
            pairs.append((legacy.get("name"), None))
        blocks = _mappings(entry.get("content"))
        pairs += [(block.get("name"), block.get("id")) for block in blocks if block.get("type") in _CALLS]
    elif entry.get("type") in _CALLS:
        pairs.append((entry.get("name"), entry.get("call_id") or entry.get("id")))
    for name, call in pairs:
        if isinstance(name, str) and name:
            yield name, call if isinstance(call, str) else ""


def _failed_calls(entry: Item) -> Iterator[str]:
    """Ids of calls whose results are errors."""
    for block in _mappings(entry.get("content")):
        call = block.get("tool_use_id")
        if block.get("is_error") is True and isinstance(call, str):
            yield call
    if entry.get("type") == "mcp_call" and entry.get("error"):
        yield str(entry.get("call_id") or entry.get("id"))
