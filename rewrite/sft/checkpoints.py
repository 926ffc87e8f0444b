"""Checkpoints on disk: which one a run goes on from, and whether anything is left to do after it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

STATE = "trainer_state.json"
"""Written last: a checkpoint without it, or with half of it, is torn."""


def remove_torn(folder: Path) -> None:
    """Removes checkpoints that a kill or a full disk left half written."""
    for checkpoint in folder.glob("checkpoint-*"):
        if not read_state(checkpoint):
            shutil.rmtree(checkpoint)


def last(folder: Path) -> Path | None:
    """The whole checkpoint that goes furthest."""
    found = {int(match[1]): path for path in folder.glob("checkpoint-*") if (match := re.search(r"-(\d+)$", path.name))}
    whole = [step for step in sorted(found) if read_state(found[step])]
    return found[whole[-1]] if whole else None


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Where a checkpoint stands; empty where it is torn."""
    try:
        state: dict[str, Any] = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state


def is_done(state: dict[str, Any], metric: str, patience: int) -> bool:
    """True where nothing is left to train: every step done, or dev has not become better for too long."""
    if int(state["global_step"]) >= int(state["max_steps"]):
        return True
    judged = [row["step"] for row in state["log_history"] if metric in row]
    best = int(state.get("best_global_step") or 0)
    return sum(int(step) > best for step in judged) >= patience
