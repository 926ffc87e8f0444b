"""Trajectories out of families of tasks: every result comes from the tools themselves, every choice from a seed.

python -m pipelines.agent.tasks      writes train.jsonl and test.jsonl beside the families

Of each family the last way to say it and the last third of its values are kept for test: a test task is worded as no
training task is, and asks for what none asked for. The tools are the same in both.
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

from pipelines.agent.world import run_tool
from pipelines.data.sample_data import SAMPLE, sample_folder
from retrievers.catalogue import read_catalogue
from retrievers.errors import BadInput
from retrievers.generative.trajectories import read_trajectories
from retrievers.training_set import Call, Trajectory
from retrievers.types import Tool

FOLDER = "agent"
PER_FAMILY = {"train": 9, "test": 3}
SEED = 7
_HOLE = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class Family:
    """Tasks that differ in words and values."""

    says: tuple[str, ...]
    slots: Mapping[str, tuple[Any, ...]]
    steps: tuple[Mapping[str, Any], ...]
    answer: str


def read_families(path: Path) -> list[Family]:
    """The families of a file."""
    return [
        Family(
            tuple(each["says"]),
            {name: tuple(values) for name, values in each["slots"].items()},
            tuple(each["steps"]),
            each["answer"],
        )
        for each in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]


def make_tasks(families: Sequence[Family], tools: Mapping[str, Tool], split: str, seed: int = SEED) -> list[Trajectory]:
    """The trajectories of one split, no two of a family alike."""
    found = []
    for number, family in enumerate(families):
        chance = random.Random(f"{seed}/{split}/{number}")
        says = family.says[-1:] if split == "test" else family.says[:-1]
        seen: set[str] = set()
        for _ in range(200):
            values = {name: chance.choice(_half(values, split)) for name, values in family.slots.items()}
            task = _filled(chance.choice(says), values, [])
            if task not in seen:
                seen.add(task)
                found.append(_done(f"{split}-{number:02}-{len(seen)}", str(task), family, values, tools, chance))
            if len(seen) == PER_FAMILY[split]:
                break
    return found


def _half(values: Sequence[Any], split: str) -> Sequence[Any]:
    """The last third is for test; a slot of two or three values has none to spare."""
    cut = len(values) - len(values) // 3 if len(values) > 3 else len(values)
    return (values[cut:] or values) if split == "test" else values[:cut]


def _done(
    name: str, task: str, family: Family, values: Mapping[str, Any], tools: Mapping[str, Tool], chance: random.Random
) -> Trajectory:
    calls: list[Call] = []
    for step in family.steps:
        results = [call.result for call in calls]
        arguments = {key: _filled(value, values, results) for key, value in step["with"].items()}
        result = run_tool(tools[step["tool"]], arguments)
        if "error" in result:
            raise BadInput(f"the task {name} calls {step['tool']} wrongly: {result['error']}")
        calls.append(Call(str(_filled(chance.choice(step["think"]), values, results)), step["tool"], arguments, result))
    answer = _filled(family.answer, values, [call.result for call in calls])
    return Trajectory(name, task, tuple(calls), str(answer))


def _filled(template: Any, values: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> Any:
    """A template with its holes filled; one that is nothing but a hole becomes the value itself."""
    if not isinstance(template, str):
        return template

    def value(name: str) -> Any:
        place, dot, field = name.partition(".")
        return results[int(place)][field] if dot else values[name]

    whole = _HOLE.fullmatch(template)
    return value(whole[1]) if whole else _HOLE.sub(lambda match: str(value(match[1])), template)


def load_trajectories(reference: str, split: str = "train") -> list[Trajectory]:
    """Trajectories by the file that holds them, or `bundled:sample`."""
    return read_trajectories(
        sample_folder() / FOLDER / f"{split}.jsonl" if reference == SAMPLE else Path(reference).expanduser()
    )


def main() -> None:
    """Writes the bundled trajectories."""
    folder = sample_folder() / FOLDER
    tools = {tool.id: tool for tool in read_catalogue(sample_folder())}
    for split in PER_FAMILY:
        rows = [asdict(each) for each in make_tasks(read_families(folder / "families.yaml"), tools, split)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
