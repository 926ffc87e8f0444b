"""Loads trajectories: tasks that were done with tools, for models that learn to call them."""

from __future__ import annotations

from pathlib import Path

from pipelines.data.sample_data import SAMPLE, sample_folder
from retrievers.generative.trajectories import read_trajectories
from retrievers.training_set import Trajectory

FOLDER = "agent"
"""Folder of the sample's trajectories."""


def load_trajectories(reference: str, split: str = "train") -> list[Trajectory]:
    """Trajectories of a file, or of `bundled:sample`."""
    return read_trajectories(
        sample_folder() / FOLDER / f"{split}.jsonl" if reference == SAMPLE else Path(reference).expanduser()
    )
