"""What each stage teaches, as tokens and which of them count."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from retrievers.errors import BadInput
from retrievers.generative.chat_format import Frames, Turn
from retrievers.generative.token_schemes import Code
from retrievers.generative.trajectories import turns
from retrievers.text import clean
from retrievers.training_set import TrainingSet, Trajectory
from retrievers.types import Tool, ToolId


@dataclass(frozen=True, slots=True)
class Lesson:
    """Tokens, and which of them are to be learned."""

    tokens: tuple[int, ...]
    learned: tuple[bool, ...]
    branches: tuple[int, ...] = ()
    """Where several answers to one question begin; each is read as if it were the only one. None: one text."""


def memories(
    tools: Sequence[Tool], documents: Sequence[str], codes: Mapping[ToolId, Code], frames: Frames, most: int
) -> list[Lesson]:
    """Document to tool."""
    return [
        _answers(frames, clean(document), [codes[tool.id]], most)
        for tool, document in zip(tools, documents, strict=True)
    ]


def retrievals(sets: Sequence[TrainingSet], codes: Mapping[ToolId, Code], frames: Frames, most: int) -> list[Lesson]:
    """Query to tool, one answer a gold tool: what is learned is one pair each, what is asked is read once."""
    found: list[Lesson] = []
    for each in sets:
        strangers = sorted(set(each.ids) - codes.keys())
        if strangers or not each.ids:
            raise BadInput(
                f"the catalogue lacks tools of the data set {each.name} ({', '.join(strangers[:3]) or 'unnamed'}); "
                "a generative retriever learns the tools that it indexes"
            )
        for query, gold in zip(each.train.queries, each.train.gold, strict=True):
            found.append(_answers(frames, query, [codes[each.ids[row]] for row in gold], most))
    return found


def actions(
    trajectories: Sequence[Trajectory],
    documents: Mapping[ToolId, str],
    codes: Mapping[ToolId, Code],
    frames: Frames,
    most: int,
) -> list[Lesson]:
    """Whole trajectories; one that is too long is cut after its last turn that fits."""
    found = []
    for each in trajectories:
        strangers = [call.tool for call in each.calls if call.tool not in codes]
        if strangers:
            raise BadInput(f"the trajectory {each.id} calls {strangers[0]!r}, which the catalogue lacks")
        said: list[Turn] = turns(each, documents, codes)
        while said:
            tokens, learned = frames.lesson(said)
            if len(tokens) <= most:
                found.append(Lesson(tuple(tokens), tuple(learned)))
                break
            said = said[:-2]
    if not found:
        raise BadInput(f"no trajectory fits into {most} tokens; raise max_length of the agent stage")
    return found


def _answers(frames: Frames, text: str, codes: Sequence[Code], most: int) -> Lesson:
    asked = frames.question(text, max(8, most - max(map(len, codes)) - 1))
    said = [token for code in codes for token in (*code, frames.end)]
    starts = list(accumulate((len(code) + 1 for code in codes[:-1]), initial=len(asked)))
    return Lesson((*asked, *said), (False,) * len(asked) + (True,) * len(said), tuple(starts) if len(codes) > 1 else ())


def batches(lessons: Sequence[Lesson], size: int, seed: int, epoch: int) -> Iterator[list[Lesson]]:
    """An epoch: shuffled, then sorted by length within stretches of many batches, then the batches shuffled.

    It depends on nothing but its arguments, so that a resumed run sees what an uninterrupted one sees.
    """
    chance = random.Random(f"{seed}/{epoch}")
    order = list(range(len(lessons)))
    chance.shuffle(order)
    stretch = size * 32
    made: list[list[int]] = []
    for start in range(0, len(order), stretch):
        some = sorted(order[start : start + stretch], key=lambda place: len(lessons[place].tokens))
        made.extend(some[place : place + size] for place in range(0, len(some), size))
    chance.shuffle(made)
    for batch in made:
        yield [lessons[place] for place in batch]
