"""Runs models against the sample's tools: many tasks at once, each until its answer or the maximum of calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.agent.simulated_tools import run_tool
from retrievers.base import Retriever
from retrievers.generative.chat_format import ChatFormat, ChatTurn
from retrievers.generative.decoding.free_text import TextGenerator
from retrievers.generative.decoding.language_model import LanguageModel
from retrievers.generative.decoding.local_model import ExtendedVocabulary
from retrievers.generative.retriever import GenerativeRetriever
from retrievers.generative.trajectories import ANSWER, TOOL, document_prompt, result_prompt, stable_json
from retrievers.types import Tool, ToolId

MAX_CALLS = 4
MAX_TOKENS = 96
PROMPT = """You can call these tools:
{tools}

Reply with the next call as JSON, {{"tool": "...", "arguments": {{...}}}}, and nothing else. When nothing is left to be
called, reply with "Answer: " and the answer.

{task}"""
"""Prompt of an untrained model."""


@dataclass(slots=True)
class AgentRun:
    """Calls and answer of one task."""

    task: str
    turns: list[ChatTurn]
    calls: list[tuple[ToolId, dict[str, Any] | None]] = field(default_factory=list)
    """Tool and arguments; None: the arguments are no JSON object."""
    answer: str = ""
    done: bool = False

    def reply(self) -> str:
        """The last turn."""
        return str(self.turns[-1].content)

    def finish(self) -> None:
        """Take the last turn as the answer."""
        self.answer, self.done = self.reply().removeprefix(ANSWER.strip()).strip(), True

    def append_result(self, tools: Mapping[ToolId, Tool]) -> None:
        """Run the last call, and append its result as a turn."""
        name, arguments = self.calls[-1]
        if name not in tools:
            result = {"error": "no such tool"}
        elif arguments is None:
            result = {"error": "the arguments are no JSON object"}
        else:
            result = run_tool(tools[name], arguments)
        self.turns.append(ChatTurn("user", result_prompt(result)))


def run_trained(
    retriever: GenerativeRetriever,
    ids: Sequence[ToolId],
    tools: Mapping[ToolId, Tool],
    documents: Mapping[ToolId, str],
    tasks: Sequence[str],
) -> list[AgentRun]:
    """Run a model with the tools in its vocabulary: it thinks, writes a tool, reads its document, writes arguments."""
    assert retriever.text_generator is not None
    generator, chat = retriever.text_generator(), retriever.chat
    runs = [AgentRun(task, [ChatTurn("user", task)]) for task in tasks]
    for _ in range(MAX_CALLS + 1):
        for run in _generate(generator, chat, runs):
            if run.reply().startswith(ANSWER.strip()) or len(run.calls) == MAX_CALLS:
                run.finish()
            else:
                run.turns.append(ChatTurn("user", TOOL))
        active = [run for run in runs if not run.done]
        for run, row in zip(active, retriever.choose([chat.prompt(run.turns) for run in active]), strict=True):
            code, document = generator.codes[row], document_prompt(documents[ids[row]])
            run.turns += [ChatTurn("assistant", code), ChatTurn("user", document)]
            run.calls.append((ids[row], None))
        for run in _generate(generator, chat, active):
            run.calls[-1] = (run.calls[-1][0], _first_object(run.reply()))
            run.append_result(tools)
    return runs


def run_untrained(
    language: LanguageModel,
    retriever: Retriever,
    tools: Mapping[ToolId, Tool],
    documents: Mapping[ToolId, str],
    tasks: Sequence[str],
    k: int,
) -> list[AgentRun]:
    """Run an untrained model, with the first k tools of a retriever in its prompt."""
    generator = TextGenerator(ExtendedVocabulary(language), language.vocab_size, {})
    chat = ChatFormat(language.tokenizer, "You are a helpful assistant that calls tools.")
    runs = []
    for task, ranking in zip(tasks, retriever.search(tasks, k), strict=True):
        listed = "\n".join(f"- {tool}: {' '.join(documents[tool].split())[:400]}" for tool in ranking.ids)
        runs.append(AgentRun(task, [ChatTurn("user", PROMPT.format(tools=listed, task=task))]))
    for _ in range(MAX_CALLS + 1):
        for run in _generate(generator, chat, runs):
            call = _first_object(run.reply())
            if call is None or "tool" not in call or len(run.calls) == MAX_CALLS:
                run.finish()
                continue
            arguments = call.get("arguments")
            run.calls.append((str(call["tool"]), arguments if isinstance(arguments, dict) else None))
            run.append_result(tools)
    return runs


def _generate(generator: TextGenerator, chat: ChatFormat, runs: Sequence[AgentRun]) -> list[AgentRun]:
    """Append a turn of the assistant to every unfinished run; return those runs."""
    active = [run for run in runs if not run.done]
    texts = generator.generate([chat.prompt(run.turns) for run in active], MAX_TOKENS)
    for run, text in zip(active, texts, strict=True):
        run.turns.append(ChatTurn("assistant", text.strip()))
    return active


def _first_object(text: str) -> dict[str, Any] | None:
    """The first JSON object in a reply; None where there is none."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(text[start:])
        stable_json(value)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
