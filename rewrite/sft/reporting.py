"""Where figures go beside metrics.jsonl: names and packages, looked at before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from rewrite.errors import Unfit

KNOWN = ("tensorboard", "wandb", "mlflow", "trackio")


def check_reporters(names: Sequence[str]) -> None:
    """Refuses a tracker that nobody knows, or whose package is not installed."""
    for name in names:
        if name not in KNOWN:
            raise Unfit(f"report_to knows {', '.join(KNOWN)}, not {name!r}")
        if find_spec(name) is None:
            raise Unfit(
                f"report_to: {name} is not installed; run `pip install {name}`, or leave {name} out of report_to"
            )
