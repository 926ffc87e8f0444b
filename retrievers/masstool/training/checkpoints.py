"""Checkpoints: tensors and facts in one file that is written whole or not at all."""

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


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and facts, durably."""
    part = path.with_name(f"{path.name}.part")
    copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with disk_room(path.parent):
        save_file(copies, part, {"facts": json.dumps(facts)})
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(part, path)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read tensors and facts; None where the file is missing or damaged."""
    if not path.exists():
        return None
    try:
        with report_out_of_memory(path), safe_open(path, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            return tensors, json.loads((opened.metadata() or {})["facts"])
    except (SafetensorError, OSError, ValueError, KeyError):
        return None


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors named PREFIX/name."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def select_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors named PREFIX/name, by name."""
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def copy_state(module: torch.nn.Module) -> dict[str, Tensor]:
    """Copies of a module's weights and buffers."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State of an optimizer, named by the index of the parameter."""
    state = optimizer.state_dict()["state"]
    return {f"{index}/{name}": torch.as_tensor(value) for index, one in state.items() for name, value in one.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state that `optimizer_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition("/")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
