"""Several processes train together under `accelerate launch` or `torchrun`: the first one writes, judges and prints."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

PATIENCE = timedelta(hours=2)
"""How long processes wait for each other: one alone judges dev, and shares of the drawing differ. A dead one is told
by the launcher."""


def first() -> bool:
    """True in the process that writes, judges and prints; the launcher says which one it is."""
    return rank() == 0


def world() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Which of the processes this is, from 0."""
    return int(os.environ.get("RANK", "0"))


def join(cpu: bool) -> None:
    """Meets the other processes before anything is loaded: on a GPU each has its own by then.

    The library, when it is left to itself, takes processes without a GPU for strangers to each other.
    """
    if world() > 1:
        from accelerate import PartialState

        PartialState(cpu=cpu, timeout=PATIENCE)
    elif cpu and "MASTER_PORT" in os.environ and os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true"):
        print(  # noqa: T201
            "accelerate starts a single process on CPUs, so this trains alone; for several: "
            "`torchrun --nproc_per_node 2 $(which rewrite-train) … --device cpu`",
            file=sys.stderr,
        )


def wait() -> None:
    """Until all processes are here."""
    if world() > 1:
        import torch

        torch.distributed.barrier()
