"""Checks the experiment trackers of `report_to` before a run starts."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from rewrite.errors import RewriteError

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")


def check_reporters(names: Sequence[str]) -> None:
    """Refuses an unknown tracker, or one whose package is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise RewriteError(f"report_to knows {', '.join(TRACKERS)}, not {name!r}")
        if find_spec(name) is None:
            raise RewriteError(
                f"report_to: {name} is not installed; run `pip install {name}`, or leave {name} out of report_to"
            )
