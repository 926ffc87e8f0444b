"""Processes that train together under `accelerate launch` or `torchrun`. The main one writes, evaluates and prints."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

TIMEOUT = timedelta(hours=2)
"""How long processes wait for each other: one alone evaluates dev, and shares of the drawing differ. The launcher ends
the others when one dies."""


def is_main_process() -> bool:
    """True in the process that writes, evaluates and prints."""
    return rank() == 0


def world_size() -> int:
    """Number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Number of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def join_processes(cpu: bool) -> None:
    """Connects the processes before anything is loaded; on GPUs each has its own from here on.

    The library does not connect processes without a GPU by itself.
    """
    if world_size() > 1:
        from accelerate import PartialState

        PartialState(cpu=cpu, timeout=TIMEOUT)
    elif cpu and "MASTER_PORT" in os.environ and os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true"):
        print(  # noqa: T201
            "accelerate starts a single process on CPUs, so this trains alone; for several: "
            "`torchrun --nproc_per_node 2 $(which rewrite-train) … --device cpu`",
            file=sys.stderr,
        )


def wait_for_all() -> None:
    """Waits until all processes are here."""
    if world_size() > 1:
        import torch

        torch.distributed.barrier()
