"""Generates the sample's trajectories from families of tasks; results come from the simulated tools.

python -m pipelines.agent.tasks      writes train.jsonl and test.jsonl next to the families

Test uses the last phrasing of each family and the last third of its values, so that a test task has new words and new
values. The tools are the same in both splits.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from pipelines.agent.simulated_tools import run_tool
from pipelines.data.sample_data import sample_folder
from pipelines.data.trajectories import FOLDER
from retrievers.catalogue import read_catalogue
from retrievers.errors import BadInput
from retrievers.training_set import Call, Trajectory
from retrievers.types import Tool

PER_FAMILY = {"train": 9, "test": 3}
SEED = 7
MAX_DRAWS = 200
_SLOT = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class TaskFamily:
    """Tasks that differ in words and values."""

    says: tuple[str, ...]
    """Phrasings of the task."""
    slots: Mapping[str, tuple[Any, ...]]
    steps: tuple[Mapping[str, Any], ...]
    answer: str


def read_families(path: Path) -> list[TaskFamily]:
    """Families of a YAML file."""
    return [
        TaskFamily(
            tuple(row["says"]),
            {name: tuple(values) for name, values in row["slots"].items()},
            tuple(row["steps"]),
            row["answer"],
        )
        for row in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]


def make_trajectories(families: Sequence[TaskFamily], tools: Mapping[str, Tool], split: str) -> list[Trajectory]:
    """Trajectories of one split, all tasks of a family different."""
    trajectories = []
    for number, family in enumerate(families):
        rng = random.Random(f"{SEED}/{split}/{number}")
        says = family.says[-1:] if split == "test" else family.says[:-1]
        tasks: set[str] = set()
        for _ in range(MAX_DRAWS):
            values = {name: rng.choice(_split_values(choices, split)) for name, choices in family.slots.items()}
            task = str(_fill(rng.choice(says), values, []))
            if task not in tasks:
                tasks.add(task)
                name = f"{split}-{number:02}-{len(tasks)}"
                trajectories.append(_make_trajectory(name, task, family, values, tools, rng))
            if len(tasks) == PER_FAMILY[split]:
                break
    return trajectories


def _split_values(values: Sequence[Any], split: str) -> Sequence[Any]:
    """The last third for test, the rest for train; all for both where there are at most three."""
    cut = len(values) - len(values) // 3 if len(values) > 3 else len(values)
    return (values[cut:] or values) if split == "test" else values[:cut]


def _make_trajectory(
    name: str, task: str, family: TaskFamily, values: Mapping[str, Any], tools: Mapping[str, Tool], rng: random.Random
) -> Trajectory:
    calls: list[Call] = []
    for step in family.steps:
        results = [call.result for call in calls]
        arguments = {key: _fill(value, values, results) for key, value in step["with"].items()}
        result = run_tool(tools[step["tool"]], arguments)
        if "error" in result:
            raise BadInput(f"the task {name} calls {step['tool']} wrongly: {result['error']}")
        calls.append(Call(str(_fill(rng.choice(step["think"]), values, results)), step["tool"], arguments, result))
    answer = _fill(family.answer, values, [call.result for call in calls])
    return Trajectory(name, task, tuple(calls), str(answer))


def _fill(template: Any, values: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> Any:
    """Fill the slots of a template; a template that is one slot becomes the value itself."""
    if not isinstance(template, str):
        return template

    def value(name: str) -> Any:
        step, dot, field = name.partition(".")
        return results[int(step)][field] if dot else values[name]

    whole = _SLOT.fullmatch(template)
    return value(whole[1]) if whole else _SLOT.sub(lambda match: str(value(match[1])), template)


def main() -> None:
    """Write the bundled trajectories."""
    folder = sample_folder() / FOLDER
    tools = {tool.id: tool for tool in read_catalogue(sample_folder())}
    families = read_families(folder / "families.yaml")
    for split in PER_FAMILY:
        rows = [asdict(trajectory) for trajectory in make_trajectories(families, tools, split)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
