"""Trajectories: tasks, and how an agent did them with the catalogue's tools. JSON lines, one trajectory each:

{"id": "t1", "task": "Is it raining in Porto?",
 "calls": [{"thought": "I need the weather.", "tool": "id", "arguments": {"city": "Porto"}, "result": {"sky": "rain"}}],
 "answer": "Yes, it rains."}

An agent is taught, and asked, in turns of two, so that any chat template will do:

user       the task                          assistant   a thought
user       TOOL                              assistant   the tool's code
user       the tool's document, ARGUMENTS    assistant   the arguments, JSON
user       RESULT and the tool's result      assistant   the next thought, or ANSWER and the answer
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrievers.errors import BadInput
from retrievers.generative.chat_format import Turn
from retrievers.generative.token_schemes import Code
from retrievers.text import clean
from retrievers.training_set import Call, Trajectory
from retrievers.types import ToolId

TOOL = "Which tool?"
ARGUMENTS = "Arguments?"
RESULT = "Result: "
ANSWER = "Answer: "
LONGEST = 800
"""Characters kept of a document or a result."""


def turns(trajectory: Trajectory, documents: Mapping[ToolId, str], codes: Mapping[ToolId, Code]) -> list[Turn]:
    """A trajectory as the conversation that an agent has."""
    said = [Turn("user", clean(trajectory.task))]
    for call in trajectory.calls:
        said += [Turn("assistant", call.thought), Turn("user", TOOL), Turn("assistant", codes[call.tool])]
        said += [Turn("user", shown(documents[call.tool])), Turn("assistant", dumped(call.arguments))]
        said.append(Turn("user", told(call.result)))
    return [*said, Turn("assistant", f"{ANSWER}{trajectory.answer}")]


def shown(document: str) -> str:
    """A tool's document as it is put before an agent that chose it."""
    return f"{clean(document)[:LONGEST]}\n{ARGUMENTS}"


def told(result: Any) -> str:
    """A tool's result as it is put before the agent."""
    return f"{RESULT}{clean(dumped(result))[:LONGEST]}"


def dumped(value: Any) -> str:
    """JSON, the same for the same value."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def read_trajectories(path: Path) -> list[Trajectory]:
    """The trajectories of a file."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as trajectories ({error})") from error
    found = [_parsed(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise BadInput(f"{path} holds no trajectories")
    seen: set[str] = set()
    for each in found:
        if each.id in seen:
            raise BadInput(f"{path}: the trajectory {each.id!r} stands twice")
        seen.add(each.id)
    return found


def _parsed(line: str, place: str) -> Trajectory:
    try:
        row = json.loads(line)
        calls = tuple(Call(each["thought"], each["tool"], each["arguments"], each["result"]) for each in row["calls"])
        found = Trajectory(row["id"], row["task"], calls, row["answer"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(
            f"{place}: a trajectory has id, task, calls (thought, tool, arguments, result) and answer"
        ) from error
    texts = [found.id, found.task, found.answer, *(text for call in calls for text in (call.thought, call.tool))]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise BadInput(f"{place}: id, task, answer, thought and tool of a trajectory must be text, and not empty")
    if not all(isinstance(call.arguments, dict) for call in calls):
        raise BadInput(f"{place}: the arguments of a call must be an object")
    return found
