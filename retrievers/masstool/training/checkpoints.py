"""Where a training stands, in one file that is there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from retrievers.files import disk_room
from retrievers.out_of_memory import report_out_of_memory


def save(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Writes tensors and facts, durable when this returns."""
    part = path.with_name(f"{path.name}.part")
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with disk_room(path.parent):
        save_file(whole, part, {"facts": json.dumps(facts)})
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(part, path)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What was saved; None where there is nothing, or nothing whole."""
    if not path.exists():
        return None
    try:
        with report_out_of_memory(path), safe_open(path, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            return tensors, json.loads((opened.metadata() or {})["facts"])
    except (SafetensorError, OSError, ValueError, KeyError):
        return None


def moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's state as tensors, named by the place of their parameter."""
    state = optimizer.state_dict()["state"]
    return {f"{place}/{name}": torch.as_tensor(value) for place, each in state.items() for name, value in each.items()}


def set_moments(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Puts an optimizer's state back."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        place, _, name = key.partition("/")
        state.setdefault(int(place), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
