"""Scores agent runs: the share of tasks whose calls, tools and arguments, are those of the trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.agent.loop import AgentRun
from retrievers.errors import BadInput
from retrievers.generative.trajectories import stable_json
from retrievers.training_set import Trajectory


@dataclass(frozen=True, slots=True)
class AgentScore:
    """Shares of all tasks."""

    tasks: int
    calls: float
    """All calls right, tools and arguments, and no further call."""
    tools: float
    """The right tools, with any arguments."""
    first: float
    """The first call right."""


def score_runs(runs: Sequence[AgentRun], gold: Sequence[Trajectory]) -> AgentScore:
    """Score runs by the trajectories of their tasks."""
    if not gold:
        raise BadInput("there are no tasks to score")
    pairs = [(_calls(run), _gold_calls(task)) for run, task in zip(runs, gold, strict=True)]
    return AgentScore(
        len(pairs),
        sum(calls == wanted for calls, wanted in pairs) / len(pairs),
        sum([tool for tool, _ in calls] == [tool for tool, _ in wanted] for calls, wanted in pairs) / len(pairs),
        sum(calls[:1] == wanted[:1] for calls, wanted in pairs) / len(pairs),
    )


def is_right(run: AgentRun, gold: Trajectory) -> bool:
    """True if all calls are those of the trajectory."""
    return _calls(run) == _gold_calls(gold)


def _calls(run: AgentRun) -> list[tuple[str, str | None]]:
    return [(tool, None if arguments is None else _normalize(arguments)) for tool, arguments in run.calls]


def _gold_calls(gold: Trajectory) -> list[tuple[str, str | None]]:
    return [(call.tool, _normalize(call.arguments)) for call in gold.calls]


def _normalize(arguments: Mapping[str, Any]) -> str:
    """Arguments without differences that do not matter: case and spaces of text, 20 and 20.0."""
    return stable_json({name: _normalize_value(value) for name, value in arguments.items()})


def _normalize_value(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
