"""Several processes train together under `accelerate launch`: the first one writes, judges and prints."""

from __future__ import annotations

import os


def first() -> bool:
    """True in the process that writes, judges and prints; the launcher says which one it is."""
    return rank() == 0


def world() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Which of the processes this is, from 0."""
    return int(os.environ.get("RANK", "0"))
