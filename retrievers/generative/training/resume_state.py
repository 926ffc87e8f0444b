"""Whose work lies in a work folder: of a run that was stopped all is kept that this run would do the same way."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retrievers.errors import BadInput
from retrievers.generative.settings import ToolGenSettings
from retrievers.generative.token_schemes import Code
from retrievers.generative.weaver_settings import WEAVE, ToolWeaverSettings
from retrievers.training_set import TrainingSet
from retrievers.types import Tool, ToolId

MARK = "run.json"
FOLDERS = {"memorise": "1-memorise", "retrieve": "2-retrieve", "agent": "3-agent", "model": "model"}
"""In the order in which they are made, each from the one before."""


def marks(
    fingerprint: str,
    codes: Mapping[ToolId, Code],
    tools: Sequence[Tool],
    documents: Sequence[str],
    sets: Sequence[TrainingSet],
    settings: ToolGenSettings | ToolWeaverSettings,
) -> dict[str, str]:
    """What each folder's content depends on, all that the one before it depends on included.

    How often is saved, and how an index that is done will be asked, changes nothing that was learned.
    """
    assert settings.train is not None
    training = asdict(settings.train)
    stages = {name: training.pop(name) for name in ("memorise", "retrieve", "agent")}
    judging = {
        name: training.pop(name) for name in ("data", "protocol", "hold_out", "dev_queries", "judge_every", "patience")
    }
    training.pop("save_every")
    asking = [settings.scores, settings.beams, settings.max_length]
    known = [{**asdict(each), "trajectories": ()} for each in sets]
    tasks = [asdict(task) for each in sets for task in each.trajectories]
    # Weights that have learned some codes are of no use with others.
    called = [(tool.id, tool.name, tool.provider) for tool in tools]
    world = [fingerprint, training, called, list(documents), sorted(codes.items())]
    parts: dict[str, Any] = {
        "memorise": [world, stages["memorise"]],
        "retrieve": [known, stages["retrieve"], judging, asking],
        "agent": [tasks, stages["agent"]],
        "model": asdict(settings),
    }
    digest, found = hashlib.sha256(), dict[str, str]()
    for name, part in parts.items():
        digest.update(json.dumps(part).encode())
        found[name] = digest.hexdigest()
    return found


def take_over(work: Path, wanted: Mapping[str, str]) -> None:
    """Clears away what another run left in the work folder, from the first stage on that differs."""
    held = _held(work / MARK)
    if held == wanted:
        return
    ours = {MARK, f"{MARK}.part", "model.part", ".lock", WEAVE, Path(WEAVE).stem + ".part", *FOLDERS.values()}
    strangers = [path for path in work.iterdir() if path.name not in ours]
    if strangers:
        raise BadInput(
            f"{work} holds other files ({strangers[0].name}); it is the work folder of the training, empty it"
        )
    for name, folder in FOLDERS.items():
        if held.get(name) != wanted[name] and (work / folder).exists():
            shutil.rmtree(work / folder)
    part = work / f"{MARK}.part"
    part.write_text(json.dumps(wanted))  # when nothing is left that it does not speak of
    os.replace(part, work / MARK)


def _held(mark: Path) -> dict[str, str]:
    try:
        found = json.loads(mark.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
