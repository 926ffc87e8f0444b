"""Trajectories: tasks that an agent solved with the catalogue's tools. JSON lines, one trajectory each:

{"id": "t1", "task": "Is it raining in Porto?",
 "calls": [{"thought": "I need the weather.", "tool": "id", "arguments": {"city": "Porto"}, "result": {"sky": "rain"}}],
 "answer": "Yes, it rains."}

Training and running use pairs of turns, so that any chat template works:

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
from retrievers.generative.chat_format import ChatTurn
from retrievers.generative.token_schemes import Code
from retrievers.text import clean
from retrievers.training_set import Call, Trajectory
from retrievers.types import ToolId

TOOL = "Which tool?"
ARGUMENTS = "Arguments?"
RESULT = "Result: "
ANSWER = "Answer: "
MAX_CHARACTERS = 800
"""Characters kept of a document or a result."""


def to_turns(trajectory: Trajectory, documents: Mapping[ToolId, str], codes: Mapping[ToolId, Code]) -> list[ChatTurn]:
    """A trajectory as a conversation."""
    turns = [ChatTurn("user", clean(trajectory.task))]
    for call in trajectory.calls:
        turns += [
            ChatTurn("assistant", call.thought),
            ChatTurn("user", TOOL),
            ChatTurn("assistant", codes[call.tool]),
            ChatTurn("user", document_prompt(documents[call.tool])),
            ChatTurn("assistant", stable_json(call.arguments)),
            ChatTurn("user", result_prompt(call.result)),
        ]
    return [*turns, ChatTurn("assistant", f"{ANSWER}{trajectory.answer}")]


def document_prompt(document: str) -> str:
    """A chosen tool's document, and the question for its arguments."""
    return f"{clean(document)[:MAX_CHARACTERS]}\n{ARGUMENTS}"


def result_prompt(result: Any) -> str:
    """A tool's result as the agent reads it."""
    return f"{RESULT}{clean(stable_json(result))[:MAX_CHARACTERS]}"


def stable_json(value: Any) -> str:
    """JSON, the same for equal values."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read and check a file of trajectories."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as trajectories ({error})") from error
    trajectories = [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not trajectories:
        raise BadInput(f"{path} holds no trajectories")
    seen: set[str] = set()
    for trajectory in trajectories:
        if trajectory.id in seen:
            raise BadInput(f"{path}: duplicate trajectory id {trajectory.id!r}")
        seen.add(trajectory.id)
    return trajectories


def _parse(line: str, where: str) -> Trajectory:
    try:
        row = json.loads(line)
        calls = tuple(Call(call["thought"], call["tool"], call["arguments"], call["result"]) for call in row["calls"])
        trajectory = Trajectory(row["id"], row["task"], calls, row["answer"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(
            f"{where}: a trajectory has id, task, calls (thought, tool, arguments, result) and answer"
        ) from error
    texts = [row["id"], row["task"], row["answer"], *(text for call in calls for text in (call.thought, call.tool))]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise BadInput(f"{where}: id, task, answer, thought and tool of a trajectory must be text, and not empty")
    if not all(isinstance(call.arguments, dict) for call in calls):
        raise BadInput(f"{where}: the arguments of a call must be an object")
    return trajectory
