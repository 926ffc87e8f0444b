"""Learning rate schedule of an encoder's training."""

from __future__ import annotations


def rate(step: int, warmup: int, total: int) -> float:
    """Share of the learning rate at a step: linear warmup, then linear decay, never 0 before the end."""
    return (step + 1) / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))
