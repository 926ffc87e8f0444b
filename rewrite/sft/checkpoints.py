"""Checkpoints on disk: which one a run resumes from, and whether anything is left to train after it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

STATE = "trainer_state.json"
"""Written last: a checkpoint without it, or with half of it, is torn."""


def remove_torn(folder: Path) -> None:
    """Removes checkpoints that a kill or a full disk left incomplete."""
    for checkpoint in folder.glob("checkpoint-*"):
        if not read_state(checkpoint):
            shutil.rmtree(checkpoint)


def last(folder: Path) -> Path | None:
    """The last complete checkpoint."""
    steps = {int(match[1]): path for path in folder.glob("checkpoint-*") if (match := re.search(r"-(\d+)$", path.name))}
    complete = [step for step in sorted(steps) if read_state(steps[step])]
    return steps[complete[-1]] if complete else None


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The trainer's state in a checkpoint; empty where it is torn."""
    try:
        state: dict[str, Any] = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state


def is_done(state: dict[str, Any], metric: str, patience: int) -> bool:
    """True where all steps are done, or dev has not improved for `patience` evaluations."""
    if int(state["global_step"]) >= int(state["max_steps"]):
        return True
    evaluated = [row["step"] for row in state["log_history"] if metric in row]
    best = int(state.get("best_global_step") or 0)
    return sum(int(step) > best for step in evaluated) >= patience
