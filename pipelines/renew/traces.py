"""Agents' logs -> what the user said, and the tools that were called for it.

A line is a request, its answer, or both: OpenAI chat completions and responses, Anthropic messages, each alone, as
{"request": …, "response": …}, or as a batch job has it ({"body": …}). A turn begins with what the user said and ends
with what the user said next; the calls in between belong to it, but those whose result says that they failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_TEXTS = {"text", "input_text"}
_CALLS = {"tool_use", "mcp_tool_use", "function_call", "custom_tool_call", "mcp_call"}
"""Blocks and items that name the tool they call."""


@dataclass(slots=True)
class Turn:
    """What a user said, and what was called before the user spoke again."""

    utterance: str
    calls: list[str] = field(default_factory=list)
    failed: int = 0


class NotATrace(ValueError):
    """A line that holds no conversation of a shape that is known."""


def read_turns(record: Any) -> list[Turn]:
    """The turns of one line of a log. A call before anybody said anything belongs to no turn."""
    entries = list(_entries(record))
    if not entries:
        raise NotATrace("no messages, no input, no choices, no output, no content")
    broken = {call for entry in entries for call in _failed(entry)}
    turns: list[Turn] = []
    for entry in entries:
        said = _said(entry)
        if said:
            turns.append(Turn(said))
        for name, call in _called(entry):
            if not turns:
                continue
            if call and call in broken:
                turns[-1].failed += 1
            else:
                turns[-1].calls.append(name)
    return turns


def _entries(record: Any) -> Iterator[Mapping[str, Any]]:
    """Messages and items of a request and of its answer, in order."""
    if not isinstance(record, Mapping):
        return
    request, response = (_body(record.get(key)) for key in ("request", "response"))
    if request is None and response is None:
        request = response = _body(record)
    for part in (request, response) if request is not response else (request,):
        if part is not None:
            yield from _asked(part)
            yield from _answered(part)


def _body(part: Any) -> Mapping[str, Any] | None:
    """A request or an answer without the envelope of a batch job."""
    if not isinstance(part, Mapping):
        return None
    inner = part.get("body")
    return inner if isinstance(inner, Mapping) else part


def _asked(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    given = part.get("messages", part.get("input"))
    if isinstance(given, str):
        yield {"role": "user", "content": given}
    elif isinstance(given, list):
        yield from (entry for entry in given if isinstance(entry, Mapping))


def _answered(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    choices, output = part.get("choices"), part.get("output")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        message = choices[0].get("message")
        if isinstance(message, Mapping):
            yield message
    elif isinstance(output, list):
        yield from (entry for entry in output if isinstance(entry, Mapping))
    elif isinstance(part.get("content"), list) and part.get("role") == "assistant":
        yield part


def _blocks(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = entry.get("content")
    return [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []


def _said(entry: Mapping[str, Any]) -> str:
    """What the user said here; "" where somebody else speaks, or a tool's result stands in the user's name."""
    if entry.get("role") != "user":
        return ""
    content = entry.get("content")
    if isinstance(content, str):
        return content.strip()
    blocks = _blocks(entry)
    if any(block.get("type") == "tool_result" for block in blocks):
        return ""
    texts = [block.get("text") for block in blocks if block.get("type") in _TEXTS]
    return "\n".join(text for text in texts if isinstance(text, str)).strip()


def _called(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and ids of the calls in an entry."""
    found: list[tuple[Any, Any]] = []
    if entry.get("role") == "assistant":
        calls = entry.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            if isinstance(call, Mapping):
                inner = call.get("function") or call.get("custom")
                found.append((inner.get("name") if isinstance(inner, Mapping) else None, call.get("id")))
        old = entry.get("function_call")  # before there were tools
        if isinstance(old, Mapping):
            found.append((old.get("name"), None))
        found += [(block.get("name"), block.get("id")) for block in _blocks(entry) if block.get("type") in _CALLS]
    elif entry.get("type") in _CALLS:
        found.append((entry.get("name"), entry.get("call_id") or entry.get("id")))
    for name, call in found:
        if isinstance(name, str) and name:
            yield name, call if isinstance(call, str) else ""


def _failed(entry: Mapping[str, Any]) -> Iterator[str]:
    """Ids of calls whose results say that they failed."""
    for block in _blocks(entry):
        call = block.get("tool_use_id")
        if block.get("is_error") is True and isinstance(call, str):
            yield call
    if entry.get("type") == "mcp_call" and entry.get("error"):
        yield str(entry.get("call_id") or entry.get("id"))
