"""Checkpoints: named parts of tensors, and facts, in one file that is written whole or not at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from retrievers.masstool.serving.tensor_files import read_tensors, write_tensors

Tensors = dict[str, Tensor]


def save_checkpoint(path: Path, parts: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
    """Write parts and facts, durably."""
    write_tensors(path, parts, facts, lambda value: value.detach().cpu().contiguous().clone(), save_file)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensors], dict[str, Any]] | None:
    """Read parts and facts; None where the file is missing or damaged."""
    return read_tensors(path, "pt", lambda value: value)


def copy_state(module: torch.nn.Module) -> Tensors:
    """Copies of a module's weights and buffers."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    """State of an optimizer, named by the index of the parameter."""
    state = optimizer.state_dict()["state"]
    return {f"{index}/{name}": torch.as_tensor(value) for index, one in state.items() for name, value in one.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state that `optimizer_tensors` returned."""
    state: defaultdict[int, Tensors] = defaultdict(dict)
    for key, value in tensors.items():
        index, _, name = key.partition("/")
        state[int(index)][name] = value
    optimizer.load_state_dict({"state": dict(state), "param_groups": optimizer.state_dict()["param_groups"]})
