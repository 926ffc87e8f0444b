"""Training examples of each stage: tokens, and which of them are learned."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from retrievers.errors import BadInput
from retrievers.generative.chat_format import ChatFormat
from retrievers.generative.token_schemes import Code
from retrievers.generative.trajectories import to_turns
from retrievers.text import clean
from retrievers.training_set import TrainingSet, Trajectory
from retrievers.types import Tool, ToolId

Codes = Mapping[ToolId, Code]


@dataclass(frozen=True, slots=True)
class TokenExample:
    """One training example."""

    tokens: tuple[int, ...]
    learned: tuple[bool, ...]
    branches: tuple[int, ...] = ()
    """Start of each of several answers to one prompt; an answer does not see the others. Empty: one text."""


def memorisation_examples(
    tools: Sequence[Tool], documents: Sequence[str], codes: Codes, chat: ChatFormat, max_length: int
) -> list[TokenExample]:
    """Document to tool."""
    return [
        _with_answers(chat, clean(document), [codes[tool.id]], max_length)
        for tool, document in zip(tools, documents, strict=True)
    ]


def retrieval_examples(
    sets: Sequence[TrainingSet], codes: Codes, chat: ChatFormat, max_length: int
) -> list[TokenExample]:
    """Query to tool, one answer per gold tool: equal to one pair each, with the query read once."""
    examples: list[TokenExample] = []
    for data in sets:
        missing = sorted(set(data.ids) - codes.keys())
        if missing or not data.ids:
            raise BadInput(
                f"the catalogue lacks tools of the data set {data.name} ({', '.join(missing[:3]) or 'unnamed'}); "
                "a generative retriever learns the tools that it indexes"
            )
        for query, gold in zip(data.train.queries, data.train.gold, strict=True):
            examples.append(_with_answers(chat, query, [codes[data.ids[row]] for row in gold], max_length))
    return examples


def agent_examples(
    trajectories: Sequence[Trajectory], documents: Mapping[ToolId, str], codes: Codes, chat: ChatFormat, max_length: int
) -> list[TokenExample]:
    """Whole trajectories; one that is too long is cut after its last turn that fits."""
    examples = []
    for trajectory in trajectories:
        missing = [call.tool for call in trajectory.calls if call.tool not in codes]
        if missing:
            raise BadInput(f"the trajectory {trajectory.id} calls {missing[0]!r}, which the catalogue lacks")
        turns = to_turns(trajectory, documents, codes)
        while turns:
            tokens, learned = chat.example(turns)
            if len(tokens) <= max_length:
                examples.append(TokenExample(tuple(tokens), tuple(learned)))
                break
            turns = turns[:-2]
    if not examples:
        raise BadInput(f"no trajectory fits into {max_length} tokens; raise max_length of the agent stage")
    return examples


def _with_answers(chat: ChatFormat, text: str, codes: Sequence[Code], max_length: int) -> TokenExample:
    prompt = chat.query_prompt(text, max(8, max_length - max(map(len, codes)) - 1))
    answers = [token for code in codes for token in (*code, chat.end)]
    starts = list(accumulate((len(code) + 1 for code in codes[:-1]), initial=len(prompt)))
    learned = (False,) * len(prompt) + (True,) * len(answers)
    return TokenExample((*prompt, *answers), learned, tuple(starts) if len(codes) > 1 else ())


def epoch_batches(examples: Sequence[TokenExample], size: int, seed: int, epoch: int) -> Iterator[list[TokenExample]]:
    """Batches of one epoch: shuffled, sorted by length within 32 batches, then the batches shuffled.

    The order depends on the arguments alone, so that a resumed run sees the same batches.
    """
    generator = random.Random(f"{seed}/{epoch}")
    order = list(range(len(examples)))
    generator.shuffle(order)
    stretch = size * 32
    batches: list[list[int]] = []
    for start in range(0, len(order), stretch):
        by_length = sorted(order[start : start + stretch], key=lambda index: len(examples[index].tokens))
        batches.extend(by_length[first : first + size] for first in range(0, len(by_length), size))
    generator.shuffle(batches)
    for batch in batches:
        yield [examples[index] for index in batch]
