"""The bundled sample data set."""

from __future__ import annotations

from pathlib import Path

SAMPLE = "bundled:sample"


def sample_folder() -> Path:
    """The data set that ships with the package."""
    return Path(__file__).parent / "sample"
