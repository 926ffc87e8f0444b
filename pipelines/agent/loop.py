"""Runs models against the sample's tools: many tasks at a time, each until it answers or has called often enough."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.agent.world import run_tool
from retrievers.base import Retriever
from retrievers.generative.chat_format import ChatFormat, ChatTurn
from retrievers.generative.decoding.free_text import TextGenerator
from retrievers.generative.decoding.language_model import LanguageModel
from retrievers.generative.decoding.local_model import ExtendedVocabulary
from retrievers.generative.retriever import GenerativeRetriever
from retrievers.generative.trajectories import ANSWER, TOOL, document_prompt, result_prompt, stable_json
from retrievers.types import Tool, ToolId

MOST_CALLS = 4
MOST_TOKENS = 96
ASK = """You can call these tools:
{tools}

Reply with the next call as JSON, {{"tool": "...", "arguments": {{...}}}}, and nothing else. When nothing is left to be
called, reply with "Answer: " and the answer.

{task}"""
"""How a model is asked that knows no tools by heart."""


@dataclass(slots=True)
class Attempt:
    """What was done about one task."""

    task: str
    turns: list[ChatTurn]
    calls: list[tuple[ToolId, dict[str, Any] | None]] = field(default_factory=list)
    """Tool and arguments; None: those could not be read."""
    answer: str = ""
    over: bool = False


def run_trained(
    retriever: GenerativeRetriever,
    ids: Sequence[ToolId],
    tools: Mapping[ToolId, Tool],
    documents: Mapping[ToolId, str],
    tasks: Sequence[str],
) -> list[Attempt]:
    """A model that has the tools in its vocabulary: it thinks, says a tool, reads its document, fills it in."""
    assert retriever.text_generator is not None
    speech, frames = retriever.text_generator(), retriever.chat
    attempts = [Attempt(task, [ChatTurn("user", task)]) for task in tasks]
    for _ in range(MOST_CALLS + 1):
        _said(speech, frames, _going(attempts))
        for each in _going(attempts):
            thought = str(each.turns[-1].content)
            if thought.startswith(ANSWER.strip()) or len(each.calls) == MOST_CALLS:
                each.answer, each.over = thought.removeprefix(ANSWER.strip()).strip(), True
            else:
                each.turns.append(ChatTurn("user", TOOL))
        going = _going(attempts)
        for each, row in zip(going, retriever.choose([frames.prompt(each.turns) for each in going]), strict=True):
            each.turns += [
                ChatTurn("assistant", speech.codes[row]),
                ChatTurn("user", document_prompt(documents[ids[row]])),
            ]
            each.calls.append((ids[row], None))
        _said(speech, frames, going)
        for each in going:
            tool, arguments = each.calls[-1][0], _object(str(each.turns[-1].content))
            each.calls[-1] = (tool, arguments)
            each.turns.append(ChatTurn("user", result_prompt(_result(tools.get(tool), arguments))))
    return attempts


def run_untrained(
    language: LanguageModel,
    retriever: Retriever,
    tools: Mapping[ToolId, Tool],
    documents: Mapping[ToolId, str],
    tasks: Sequence[str],
    k: int,
) -> list[Attempt]:
    """A model as it comes, with the first k tools that a retriever finds in its prompt."""
    speech = TextGenerator(ExtendedVocabulary(language), language.vocab_size, {})
    frames = ChatFormat(language.tokenizer, "You are a helpful assistant that calls tools.")
    attempts = []
    for task, ranking in zip(tasks, retriever.search(tasks, k), strict=True):
        listed = "\n".join(f"- {tool}: {' '.join(documents[tool].split())[:400]}" for tool in ranking.ids)
        attempts.append(Attempt(task, [ChatTurn("user", ASK.format(tools=listed, task=task))]))
    for _ in range(MOST_CALLS + 1):
        _said(speech, frames, _going(attempts))
        for each in _going(attempts):
            text = str(each.turns[-1].content)
            call = _object(text)
            if call is None or "tool" not in call or len(each.calls) == MOST_CALLS:
                each.answer, each.over = text.removeprefix(ANSWER.strip()).strip(), True
                continue
            arguments = call.get("arguments")
            each.calls.append((str(call["tool"]), arguments if isinstance(arguments, dict) else None))
            each.turns.append(ChatTurn("user", result_prompt(_result(tools.get(str(call["tool"])), each.calls[-1][1]))))
    return attempts


def _going(attempts: Sequence[Attempt]) -> list[Attempt]:
    return [each for each in attempts if not each.over]


def _said(speech: TextGenerator, frames: ChatFormat, attempts: Sequence[Attempt]) -> None:
    """Every attempt one turn of the assistant further."""
    for each, text in zip(
        attempts, speech.generate([frames.prompt(each.turns) for each in attempts], MOST_TOKENS), strict=True
    ):
        each.turns.append(ChatTurn("assistant", text.strip()))


def _result(tool: Tool | None, arguments: dict[str, Any] | None) -> dict[str, Any]:
    if tool is None:
        return {"error": "no such tool"}
    return {"error": "the arguments are no JSON object"} if arguments is None else run_tool(tool, arguments)


def _object(text: str) -> dict[str, Any] | None:
    """The first JSON object in what a model said; nothing of it is ever run."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text[start:])
        stable_json(found)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
