"""One thread for small trainings on a CPU, so that threads do not wait for each other in every small product."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL_STEP = 2**28
"""Multiplications per step, about, below which one thread is used. A fixed rule: a resumed run has the same sums."""


@contextmanager
def training_threads(device: str, step: int) -> Iterator[None]:
    """Use one thread on a CPU for steps with few multiplications; the threads that were set, afterwards.

    Beside other work two threads take ten times as long as one, since each waits for the other's turn on a core.
    """
    before = torch.get_num_threads()
    small = device == "cpu" and before > 1 and step < SMALL_STEP
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if small:
            torch.set_num_threads(before)
