"""Is a task done right? The share whose calls, tools and arguments, are those of its trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.agent.loop import Attempt
from retrievers.errors import BadInput
from retrievers.generative.trajectories import stable_json
from retrievers.training_set import Trajectory


@dataclass(frozen=True, slots=True)
class AgentScore:
    """Shares of all tasks."""

    tasks: int
    calls: float
    """All calls right, tools and arguments, and none too many."""
    tools: float
    """The right tools, whatever their arguments."""
    first: float
    """The first call right."""


def score(attempts: Sequence[Attempt], wanted: Sequence[Trajectory]) -> AgentScore:
    """Judges attempts by the trajectories of their tasks."""
    if not wanted:
        raise BadInput("there are no tasks to score")
    pairs = list(zip(attempts, wanted, strict=True))
    return AgentScore(
        len(pairs),
        sum(right(each, gold) for each, gold in pairs) / len(pairs),
        sum([tool for tool, _ in each.calls] == [call.tool for call in gold.calls] for each, gold in pairs)
        / len(pairs),
        sum(_calls(each)[:1] == _gold(gold)[:1] for each, gold in pairs) / len(pairs),
    )


def right(attempt: Attempt, wanted: Trajectory) -> bool:
    """True where all calls are as they should be."""
    return _calls(attempt) == _gold(wanted)


def _calls(attempt: Attempt) -> list[tuple[str, str | None]]:
    return [(tool, None if arguments is None else _plain(arguments)) for tool, arguments in attempt.calls]


def _gold(wanted: Trajectory) -> list[tuple[str, str | None]]:
    return [(call.tool, _plain(call.arguments)) for call in wanted.calls]


def _plain(arguments: Mapping[str, Any]) -> str:
    """Arguments with nothing in them that makes no difference: case and spaces of text, 20 and 20.0."""
    return stable_json({name: _value(value) for name, value in arguments.items()})


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
