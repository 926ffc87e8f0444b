"""Where a retriever learns from. Stdlib only, like all settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingSource:
    """A data set to learn from."""

    path: str
    """A data set folder, or `bundled:sample`."""
    text: tuple[str, ...] = ()
    """Which parts of a tool are read; the index's own when not given."""
